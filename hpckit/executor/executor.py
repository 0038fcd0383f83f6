"""`hpckit.Executor` gathers calls of functions, launches them together, and hands out their jobs."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from rich.progress import track

from hpckit.api.finding import open_launch
from hpckit.api.handles import Launch
from hpckit.api.invocation import build_python_context, explain_errors
from hpckit.api.launching import launch
from hpckit.api.watch import renew_in_children
from hpckit.errors import UsageError
from hpckit.executor.encoding import DelayedSubmission, EncodedCall, encode_calls, write_calls
from hpckit.executor.job import Job, open_job
from hpckit.executor.parameters import build_launch_settings, check_parameters
from hpckit.executor.watcher import WATCHER
from hpckit.record.launches import load_launch
from hpckit.values import dataclass, field

R = TypeVar("R")
_QUIET_S, _LONGEST_S = 0.05, 1.0
"""Calls that follow each other within the first time, up to the second, are launched together."""
_COMMAND = ("python", "-P", "-m", "hpckit.executor.call", "${params.call}")


@dataclass(slots=True, kw_only=True, eq=False)
class _Batch:
    """Calls that are launched together: those of one `with` block, or loose ones, which wait for more."""

    parameters: Mapping[str, Any]
    calls: dict[Job[Any], EncodedCall] = field(default_factory=dict)
    implicit: bool = False
    began_at: float = field(default_factory=time.monotonic)
    due_at: float = 0.0

    def refuse(self, error: BaseException) -> None:
        for job in self.calls:
            job.refuse(error)


class Executor(concurrent.futures.Executor):
    """Runs functions on a cluster or on this machine, each call as a run of hpckit.

    `folder` is where launches and results go: all nodes see it, nobody else may write there.
    `cluster` is a name below `cluster/` in the configuration (`slurm`, `local`, your own), or
    "auto" (None): Slurm if there is one. The project is `cwd`, by default the current folder: its
    code is frozen with each launch, its `conf/` counts, and functions run there. `parameters` are
    those of `update_parameters`.

    A call is made at least once: after a kill or a preemption again from its start, or from where
    `run.steps()` of an `hpckit.attach()` inside had come, or with what its `checkpoint(...)`
    returned. The first result that is committed counts. Functions that runs can import go by name
    with arguments as JSON, others as pickles. All methods may be called from several threads.

    Raises UsageError for unknown parameters and for what cannot be sent to a run.

    Example:
        with hpckit.Executor(folder="outputs", cluster="local", timeout_min=10) as executor:
            jobs = executor.map_array(pow, [2, 3], [10, 10])
        assert [job.result() for job in jobs] == [1024, 59049]

    """

    @explain_errors
    def __init__(
        self,
        folder: str | Path,
        cluster: str | None = None,
        *,
        cwd: str | Path | None = None,
        max_pickle_size_gb: float = 1.0,
        **parameters: Any,
    ) -> None:
        if cluster == "debug":
            raise UsageError("there is no cluster 'debug'", hint="call the function, or take cluster='local'")
        self.folder = Path(os.path.abspath(Path(folder).expanduser()))  # noqa: PTH100  # links stay
        self.cluster, self.max_pickle_size_gb = cluster or "auto", max_pickle_size_gb
        self.cwd = build_python_context(cwd).cwd
        self.parameters = check_parameters(parameters)
        self._closed, self._jobs = False, WeakSet[Job[Any]]()
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """Begin without calls that wait: in a child process, those are its parent's."""
        self._changed = threading.Condition()
        self._due: list[_Batch] = []
        self._held: dict[int, _Batch] = {}
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        more = {"cwd": self.cwd, "max_pickle_size_gb": self.max_pickle_size_gb, **self.parameters}
        return partial(Executor, self.folder, self.cluster, **more), ()

    @explain_errors
    def update_parameters(self, **parameters: Any) -> None:
        """Change what calls ask for from now on; None keeps a parameter as it is.

        Shared: `name`, `timeout_min`, `mem_gb` (of a node), `nodes`, `cpus_per_task`,
        `gpus_per_node`, `tasks_per_node`, `stderr_to_stdout`. `slurm_NAME` are those of submitit's
        SlurmExecutor; those of other clusters (`local_…`) are ignored. `overrides` is a list of
        words of `hpckit launch`: `overrides=["recovery=patient", "sweep.runs_per_job=8"]`.

        Raises UsageError for an unknown name or a wrong type, RuntimeError within `batch()`.
        """
        if threading.get_ident() in self._held:
            raise RuntimeError("parameters cannot change within `with executor.batch()`")
        self.parameters = {**self.parameters, **check_parameters(parameters)}

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Job[R]:
        """Submit one call and return its job at once.

        Calls that follow each other within 50 ms are launched together, as one array; asking a job
        for anything launches it without that wait. What prevents the launch is raised by its job.
        Raises UsageError for a call that cannot be pickled, RuntimeError after `shutdown()`.
        """
        return self._submit_calls([DelayedSubmission(fn, *args, **kwargs)], urgent=False)[0]

    def map_array(self, fn: Callable[..., R], *iterables: Iterable[Any]) -> list[Job[R]]:
        """Submit a call for each set of arguments, all as one launch; return the jobs in order."""
        return self._submit_calls([DelayedSubmission(fn, *args) for args in zip(*iterables, strict=False)])

    def submit_array(self, fns: Sequence[Callable[[], R]]) -> list[Job[R]]:
        """Submit calls of different functions without arguments, all as one launch."""
        return self._submit_calls([DelayedSubmission(fn) for fn in fns])

    def map(
        self, fn: Callable[..., R], *iterables: Iterable[Any], timeout: float | None = None, **_: Any
    ) -> Iterator[R]:
        """Return the results in order, as they come; all calls are launched at once, as one array.

        The error of a call is raised in its place; other runs go on. `chunksize` has no effect:
        `overrides=["sweep.runs_per_job=8"]` packs runs.
        """
        jobs, until = self.map_array(fn, *iterables), timeout and time.monotonic() + timeout
        return (job.result(until and max(0, until - time.monotonic())) for job in jobs)

    @contextmanager
    def batch(self, allow_implicit_submissions: bool = False) -> Iterator[None]:  # noqa: FBT001, FBT002  # submitit's
        """Launch all calls of a `with` block together at its end; an exception drops them.

        Within it asking a job for anything raises AttributeError, or with
        `allow_implicit_submissions` launches what was submitted so far.
        """
        own = threading.get_ident()
        if own in self._held:
            raise RuntimeError('Nesting "with executor.batch()" contexts is not allowed.')
        batch = self._held[own] = _Batch(parameters=self.parameters, implicit=allow_implicit_submissions)
        try:
            yield
        except BaseException:
            if self._held.pop(own, None) is not None:
                batch.refuse(UsageError("this call was dropped: its batch ended with an exception"))
            raise
        if not batch.calls and not allow_implicit_submissions:
            warnings.warn("nothing was submitted within the batch", RuntimeWarning, stacklevel=3)
        with self._changed:
            if self._held.pop(own, None) is not None:
                self._launch_soon(batch)

    def open(self, reference: str | Path | None = None) -> list[Job[Any]]:
        """Return the jobs of a launch of this folder, of any process; None means the latest.

        `reference` is an id, its beginning, a name, or with `.3` one run. Raises NotFoundError.
        """
        return [open_job(run.folder, run.index) for run in open_launch(reference, output_dir=self.folder)]

    def progress(self, jobs: Iterable[Job[Any]] | None = None) -> None:
        """Show a progress bar until these jobs have ended (default: all of this executor)."""
        chosen = list(self._jobs if jobs is None else jobs)
        for _ in track(concurrent.futures.as_completed(chosen), self.folder.name, total=len(chosen)):
            pass

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  # Python's
        """Accept no more calls. With `wait`, and at the end of a `with` block, wait for all jobs.

        With `cancel_futures` cancel those that have not ended. Without either, runs go on by
        themselves, also after this process.
        """
        with self._changed:
            self._closed = True
            left, self._due, self._held = [*self._due, *self._held.values()], [], {}
            for batch in left:
                if cancel_futures:
                    batch.refuse(concurrent.futures.CancelledError())
                else:
                    self._launch_soon(batch)
            self._changed.notify_all()
        if cancel_futures and (runs := [job.run for job in self._jobs if not job.done()]):
            Launch([(run.folder, run.index) for run in runs]).cancel()
        if wait:
            concurrent.futures.wait(list(self._jobs))

    @explain_errors
    def _submit_calls(self, calls: Sequence[DelayedSubmission], *, urgent: bool = True) -> list[Job[Any]]:
        checkout = next((one for one in (self.cwd, *self.cwd.parents) if (one / ".git").exists()), self.cwd)
        encoded = encode_calls(calls, [self.cwd, checkout, checkout / "src"])
        size_gb = sum(map(len, {part for _, parts in encoded for part in parts})) / 2**30
        if size_gb > self.max_pickle_size_gb:
            message = f"the calls have {size_gb:.2f} GB, max_pickle_size_gb is {self.max_pickle_size_gb}"
            raise UsageError(message, hint="pass the path of a file in place of what it holds")
        with self._changed:
            if self._closed:
                raise RuntimeError("cannot submit calls after shutdown()")
            held = self._held.get(threading.get_ident())
            loose = (one for one in self._due if one.due_at and one.parameters is self.parameters)
            batch = held or next(loose, None) or _Batch(parameters=self.parameters)
            one_stream = bool(batch.parameters.get("stderr_to_stdout"))
            jobs = [Job[Any](self.submit_now, one_stream=one_stream) for _ in encoded]
            self._jobs.update(jobs)
            batch.calls.update(zip(jobs, encoded, strict=True))
            if held is None:
                due_at = min(batch.began_at + _LONGEST_S, time.monotonic() + _QUIET_S)
                self._launch_soon(batch, 0.0 if urgent else due_at)
        return jobs

    def submit_now(self, job: Job[Any]) -> None:
        """Launch what waits with this job, as it is asked for something; jobs call this themselves."""
        with self._changed:
            found = next((one for one in (*self._due, *self._held.values()) if job in one.calls), None)
            if found is None:
                return
            if found not in self._due:
                if not found.implicit:
                    raise AttributeError("jobs of `with executor.batch()` are submitted at its end")
                taken, found.calls = found.calls, {}
                found = _Batch(parameters=found.parameters, calls=taken)
            self._launch_soon(found)

    def _launch_soon(self, batch: _Batch, due_at: float = 0.0) -> None:
        batch.due_at = due_at
        if batch not in self._due and batch.calls:
            self._due.append(batch)
        if self._thread is None and self._due:
            self._thread = threading.Thread(target=self._launch_gathered, name="hpckit-submit")
            self._thread.start()
        self._changed.notify_all()

    def _launch_gathered(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                batch = min(self._due, key=lambda one: one.due_at)
                if (pause_s := batch.due_at - time.monotonic()) > 0:
                    self._changed.wait(pause_s)
                    continue
                self._due.remove(batch)
            self._launch(batch)

    def _launch(self, batch: _Batch) -> None:
        encoded = [*batch.calls.values()]
        try:
            words = [str(word) for word in batch.parameters.get("overrides", ())]
            chosen = {word.lstrip("+~").partition("=")[0] for word in words}
            settings = {
                "cluster": self.cluster,
                "cluster.max_parallel": max(2, os.cpu_count() or 1),
                "name": encoded[0][0],
                "output_dir": str(self.folder).replace("${", r"\${"),
                "runtime.cwd": "project",
                "entry_point": None,
                **build_launch_settings(batch.parameters),
            }
            kept = {key: value for key, value in settings.items() if key.lstrip("+") not in chosen}
            calls = write_calls(encoded, self.folder / ".calls")
            points: list[dict[str, Any]] = [{"+params.call": text} for text in calls]
            if len(set(calls)) < len(calls):  # the same call several times is meant so
                points = [point | {"+params.number": number} for number, point in enumerate(points)]
            only, several = (points[0], None) if len(points) == 1 else ({}, points)
            begun = launch(kept, *words, only, points=several, command=_COMMAND, cwd=self.cwd, rerun=True)
            record = load_launch(begun.folder)
        except BaseException as error:  # noqa: BLE001  # its jobs raise it
            batch.refuse(error)
            return
        # First of all: a process that is forked as soon as a job has its run waits for it, too.
        WATCHER.watch(record, enumerate(job.settle for job in batch.calls))
        for index, job in enumerate(batch.calls):
            job.place.set_result((record, index))
