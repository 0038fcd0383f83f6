"""`hpckit.Executor`: calls of Python functions as runs, with the surface of submitit's executors.

It gathers calls, launches them together and hands out their jobs; what happens to runs is decided elsewhere.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from rich.progress import track

from hpckit.api.finding import open_launch
from hpckit.api.handles import Launch
from hpckit.api.invocation import explain_errors
from hpckit.api.launching import launch
from hpckit.context import current_folder
from hpckit.errors import UsageError
from hpckit.executor.encoding import DelayedSubmission, EncodedCall, encode_calls, write_calls
from hpckit.executor.job import Job, open_job
from hpckit.executor.parameters import build_launch_settings, check_parameters
from hpckit.executor.watcher import WATCHER
from hpckit.record.launches import load_launch

R = TypeVar("R")
_Given = tuple[Job[Any], EncodedCall, Mapping[str, Any]]
"""A job with its call, and the parameters of its moment."""

_QUIET_S, _LONGEST_S = 0.05, 1.0
"""Calls that follow each other within the first time, up to the second, are launched together."""
_COMMAND = ("python", "-P", "-m", "hpckit.executor.call", "${params.call}")
_LAUNCHING = threading.Lock()


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
        self.cwd = current_folder() if cwd is None else Path(cwd).expanduser().absolute()
        self.parameters = check_parameters(parameters)
        self._changed = threading.Condition()
        self._waiting: list[_Given] = []
        self._first_at = self._last_at = 0.0
        self._urgent = self._closed = self._held = self._implicit = False
        self._thread: threading.Thread | None = None
        self._jobs: WeakSet[Job[Any]] = WeakSet()

    @explain_errors
    def update_parameters(self, **parameters: Any) -> None:
        """Change what calls ask for from now on; None keeps a parameter as it is.

        Shared: `name`, `timeout_min`, `mem_gb` (of a node), `nodes`, `cpus_per_task`,
        `gpus_per_node`, `tasks_per_node`, `stderr_to_stdout`. `slurm_NAME` are those of submitit's
        SlurmExecutor; those of other clusters (`local_…`) are ignored. `overrides` is a list of
        words of `hpckit launch`: `overrides=["recovery=patient", "sweep.runs_per_job=8"]`.

        Raises UsageError for an unknown name or a wrong type, RuntimeError within `batch()`.
        """
        if self._held:
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
        jobs, began = self.map_array(fn, *iterables), time.monotonic()
        return (
            job.result(None if timeout is None else max(0, began + timeout - time.monotonic()))
            for job in jobs
        )

    @contextmanager
    def batch(self, allow_implicit_submissions: bool = False) -> Iterator[None]:  # noqa: FBT001, FBT002  # submitit's
        """Launch all calls of a `with` block together at its end; an exception drops them.

        Within it asking a job for anything raises AttributeError, or with
        `allow_implicit_submissions` launches what was submitted so far.
        """
        if self._held:
            raise RuntimeError('Nesting "with executor.batch()" contexts is not allowed.')
        self._held, self._implicit = True, allow_implicit_submissions
        dropped: list[_Given] = []
        try:
            yield
            if not self._waiting and not allow_implicit_submissions:
                warnings.warn("nothing was submitted within the batch", RuntimeWarning, stacklevel=3)
        except BaseException:
            dropped, self._waiting = self._waiting, []
            raise
        finally:
            with self._changed:
                self._held, self._urgent = False, True
                self._changed.notify_all()
            for job, _, _ in dropped:
                job.refuse(UsageError("this call was dropped: its batch ended with an exception"))

    def open(self, reference: str | Path | None = None) -> list[Job[Any]]:
        """Return the jobs of a launch of this folder, of any process; None means the latest.

        `reference` is an id, its beginning, a name, or with `.3` one run. Raises NotFoundError.
        """
        found = open_launch(reference, output_dir=self.folder)
        return [open_job(run.folder, run.index) for run in found.runs]

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
            self._closed = self._urgent = True
            dropped, self._waiting = (self._waiting, []) if cancel_futures else ([], self._waiting)
            self._changed.notify_all()
        for job, _, _ in dropped:
            job.refuse(concurrent.futures.CancelledError())
        if cancel_futures and (left := [job.run for job in self._jobs if not job.done()]):
            Launch([(run.folder, run.index) for run in left]).cancel()
        if wait:
            concurrent.futures.wait(list(self._jobs))

    @explain_errors
    def _submit_calls(self, calls: Sequence[DelayedSubmission], *, urgent: bool = True) -> list[Job[Any]]:
        around = (path for path in (self.cwd, *self.cwd.parents) if (path / ".git").exists())
        checkout = next(around, self.cwd)
        encoded = encode_calls(calls, [self.cwd, checkout, checkout / "src"])
        size_gb = sum(map(len, {part for call in encoded for part in call.pickles})) / 2**30
        if size_gb > self.max_pickle_size_gb:
            message = f"the pickles have {size_gb:.2f} GB, max_pickle_size_gb is {self.max_pickle_size_gb}"
            raise UsageError(message, hint="pass the path of a file in place of what it holds")
        parameters = self.parameters
        one_stream = bool(parameters.get("stderr_to_stdout"))
        jobs = [Job[Any](self.submit_now, one_stream=one_stream) for _ in encoded]
        with self._changed:
            if self._closed:
                raise RuntimeError("cannot submit calls after shutdown()")
            self._last_at = time.monotonic()
            if not self._waiting:
                self._first_at, self._urgent = self._last_at, False
            self._waiting += [(job, call, parameters) for job, call in zip(jobs, encoded, strict=True)]
            self._urgent = self._urgent or (urgent and not self._held)
            self._jobs.update(jobs)
            if self._thread is None and jobs:
                self._thread = threading.Thread(target=self._launch_gathered, name="hpckit-submit")
                self._thread.start()
            self._changed.notify_all()
        return jobs

    def submit_now(self, job: Job[Any]) -> None:
        """Launch what waits, as this job is asked for something; jobs call this themselves."""
        with self._changed:
            if self._held and not self._implicit and any(job is one for one, _, _ in self._waiting):
                raise AttributeError("jobs of `with executor.batch()` are submitted at its end")
            self._urgent = not self._held or self._implicit
            self._changed.notify_all()

    def _launch_gathered(self) -> None:
        while True:
            with self._changed:
                while self._waiting and not self._urgent:
                    due = min(self._first_at + _LONGEST_S, self._last_at + _QUIET_S)
                    if not self._held and due <= time.monotonic():
                        break
                    self._changed.wait(None if self._held else due - time.monotonic())
                given, self._waiting, self._urgent = self._waiting, [], self._closed
                if not given:
                    self._thread = None
                    return
            for parameters, some in groupby(given, key=lambda one: one[2]):
                self._launch(list(some), parameters)

    def _launch(self, given: Sequence[_Given], parameters: Mapping[str, Any]) -> None:
        try:
            words = [str(word) for word in parameters.get("overrides", ())]
            chosen = {word.lstrip("+~").partition("=")[0] for word in words}
            settings = {
                "cluster": self.cluster,
                "cluster.max_parallel": max(2, os.cpu_count() or 1),
                "name": given[0][1].name,
                "output_dir": str(self.folder),
                "runtime.cwd": "project",
                "entry_point": None,
                **build_launch_settings(parameters),
            }
            kept = {key: value for key, value in settings.items() if key.lstrip("+") not in chosen}
            calls = write_calls([call for _, call, _ in given], self.folder / ".calls")
            points: list[dict[str, Any]] = [{"+params.call": text} for text in calls]
            if len(set(calls)) < len(calls):  # the same call several times is meant so
                points = [point | {"+params.number": number} for number, point in enumerate(points)]
            only, several = (points[0], None) if len(points) == 1 else ({}, points)
            with _LAUNCHING:
                begun = launch(kept, *words, only, points=several, command=_COMMAND, cwd=self.cwd, rerun=True)
            record = load_launch(begun.folder)
        except BaseException as error:  # noqa: BLE001  # its jobs raise it
            for job, _, _ in given:
                job.refuse(error)
            return
        for index, (job, _, _) in enumerate(given):
            job.assign_run(record, index)
        WATCHER.watch(record, {index: job for index, (job, _, _) in enumerate(given)})
