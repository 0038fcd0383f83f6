"""A job: the future of one call, whose run may outlive this process and be opened by another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

from hpckit.api.handles import LaunchedRun, build_run_failed_error
from hpckit.api.pickling import load_own_pickle
from hpckit.api.watch import renew_in_children
from hpckit.errors import HpckitError, RunFailedError, UsageError
from hpckit.executor.encoding import DelayedSubmission, read_call, read_result
from hpckit.executor.watcher import WATCHER
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, load_launch, load_run_settings, read_run_records
from hpckit.record.logs import find_rank_logs, read_log_of_all_attempts
from hpckit.report.rows import build_run_row

R = TypeVar("R")


class JobPaths(NamedTuple):
    """The files of one task of a job: `stdout` and `stderr` are the log of its latest round."""

    folder: Path
    stdout: Path
    stderr: Path
    result: Path


class Job(Future[R]):
    """One submitted call: a `concurrent.futures.Future` with the methods of submitit's jobs.

    A failed call that hpckit starts again, or a preempted one that waits for its next attempt, is
    not done. A job can be pickled: it stands for its run, in any process. Methods that need the
    run wait until it is submitted, and raise what prevented that.

    Example:
        job = executor.submit(pow, 2, 10)
        assert job.result(timeout=60) == 1024

    """

    def __init__(
        self, submit_now: Callable[[Job[Any]], None] = lambda _: None, *, one_stream: bool = False
    ) -> None:
        super().__init__()
        self._submit, self._one_stream = submit_now, one_stream
        self.place: Future[tuple[Launch, int]] = Future()
        self._end: RunState | None = None
        self._values: list[Any] = []
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """Make new locks; a call that only the parent process can launch ends here with an error."""
        for one in (self, self.place):
            one._condition = threading.Condition()  # noqa: SLF001  # Python's own does not
        if not self.place.done():
            words = "this process was forked before the call was submitted"
            self.refuse(UsageError(words, hint="ask for job_id"))

    def refuse(self, error: BaseException) -> None:
        """End with an error that is not of the run; hpckit calls this itself."""
        with self._condition:
            if isinstance(error, CancelledError) and super().cancel():
                self.set_running_or_notify_cancel()
            elif not super().done():
                self.set_exception(error)
            if not self.place.done():
                self.place.set_exception(error)

    def settle(self, end: RunView | Exception, late: bool) -> bool:  # noqa: FBT001  # of a pair
        """End as the run did, or with an error; return False while a result is not visible, unless `late`."""
        if isinstance(end, Exception):
            self.refuse(end)
            return True
        (launch, index), record, values = self.need_run(), end.record, list[Any]()
        run, error = launch.paths.run(index), None
        if end.state is not RunState.completed:
            error = build_run_failed_error(build_run_row(end))
            failed = 0 if record.failure is None else record.failure.rank or 0
            left = run.attempt(record.attempt).round(record.round or 0).rank_exception_file(failed)
            with suppress(Exception):  # there is none, or its class is not here, or takes other arguments
                error.__cause__ = load_own_pickle(left.with_suffix(".pkl"))
        first: BaseException | None = error
        for rank in range(self.num_tasks):
            try:
                values.append(read_result(run, rank))
            except BaseException as unread:  # noqa: BLE001  # unpickling runs a user's own code
                if isinstance(unread, FileNotFoundError) and error is None and not late:
                    return False
                values.append(error or _explain_unread_result(record.id, unread))
                first = first or values[-1]
        with self._condition:
            if super().done():  # another thread has looked, too
                return True
            self._values, self._end = values, end.state
            if end.state is RunState.cancelled:
                super().cancel()
                self.set_running_or_notify_cancel()
            elif first is not None:
                self.set_exception(first)
            else:
                self.set_result(values[0])
        return True

    def _invoke_callbacks(self) -> None:
        """Have callbacks wait for other jobs: a thread of their own calls them."""
        call_back: Callable[[], None] = super()._invoke_callbacks  # type: ignore[misc]  # not in its stubs
        if self._done_callbacks:  # type: ignore[attr-defined]
            threading.Thread(target=call_back, name="hpckit-callbacks").start()

    def need_run(self) -> tuple[Launch, int]:
        """Return the launch and the index of the run, once it is submitted; raises what prevented that."""
        if not self.place.done():
            self._submit(self)
        return self.place.result()

    @property
    def run(self) -> LaunchedRun:
        """The run behind this job: its metrics, logs, report."""
        launch, index = self.need_run()
        return LaunchedRun([(launch.folder, index)])

    @property
    def job_id(self) -> str:
        """Slurm's job id, such as `123_4`; without one the id of the run."""
        launch, index = self.need_run()
        (record,) = read_run_records(launch, [index])
        return record.job or record.id

    @cached_property
    def num_tasks(self) -> int:
        """The number of ranks, each of which makes the call."""
        resources = load_run_settings(*self.need_run())[0].resources
        return max(1, resources.nodes * resources.tasks_per_node)

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, INTERRUPTED or UNKNOWN."""
        if self._end is not None:
            return self._end.upper()
        if super().done():  # without a run
            return "CANCELLED" if self.cancelled() else "FAILED"
        launch, index = self.need_run()
        view = WATCHER.find_view(launch.folder, index)
        return (self.run.state if view is None else view.state).upper()

    def done(self, force_check: bool = False) -> bool:  # noqa: FBT001, FBT002  # submitit's own
        """Return whether the call has ended for good; `force_check` looks at once, and asks Slurm."""
        if force_check and not super().done():
            self.need_run()
            WATCHER.update(force=True)
        return super().done()

    def running(self) -> bool:
        """Return whether its ranks run at present."""
        return not super().done() and self.state == "RUNNING"

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end, whatever it is; raises TimeoutError after `timeout` seconds."""
        self._submit(self)
        if not wait([self], timeout).done:
            raise TimeoutError(f"the job has not ended after {timeout:g} s; its run continues")

    def result(self, timeout: float | None = None) -> R:
        """Wait, and return what the function returned (on rank 0).

        Raises RunFailedError if the run failed, with the exception of the function as its
        `__cause__`, CancelledError, and TimeoutError after `timeout` seconds.
        """
        self._submit(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error that `result` would raise; None if the call returned."""
        self._submit(self)
        return super().exception(timeout)

    def results(self, *, raise_: bool = True) -> list[Any]:
        """Wait, and return what each rank returned; with `raise_=False`, errors in place of the rest."""
        self.result() if raise_ else self.wait()
        return self._values or [super().exception()] * self.num_tasks

    def cancel(self, check: bool = True) -> bool:  # noqa: FBT001, FBT002  # submitit's own
        """Ask for the end of the run; return whether it had not ended yet.

        The job is cancelled once the run has stopped: `wait()` for that. Raises SchedulerError if
        Slurm does not answer, unless `check` is false.
        """
        if super().done():
            return self.cancelled()
        tolerated = () if check else (HpckitError,)
        with suppress(*tolerated):
            self.run.cancel()
            return True
        return False

    def task(self, task_id: int) -> Task[R] | Self:
        """Return one rank's part; of a job with one task, the job itself."""
        if not 0 <= task_id < self.num_tasks:
            raise ValueError(f"task_id {task_id} must be between 0 and {self.num_tasks - 1}")
        return self if self.num_tasks == 1 else Task(self, task_id)

    def stdout(self) -> str | None:
        """Return what all ranks printed, with standard error, in all attempts; None if nothing yet."""
        texts = [text for rank in range(self.num_tasks) if (text := Task(self, rank).stdout()) is not None]
        return "\n".join(texts) if texts else None

    def stderr(self) -> str | None:
        """Return the same as `stdout()`, as both are in one log; None with `stderr_to_stdout=True`."""
        return None if self._one_stream else self.stdout()

    @property
    def paths(self) -> JobPaths:
        """The job's files; of several tasks, those of the first."""
        return Task(self, 0).paths

    def submission(self) -> DelayedSubmission:
        """Return the call as submitted; raises ForeignError for pickles that others could have written."""
        return read_call(load_run_settings(*self.need_run())[0].params["call"])

    def __repr__(self) -> str:
        if not self.place.done() or self.place.exception():
            return super().__repr__()
        return f"<Job {self.run.id}: {self.state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        launch, index = self.need_run()
        return (open_job, (launch.folder, index, self._one_stream))


class Task(NamedTuple, Generic[R]):
    """One rank's part of a job with several; it ends with the job, whose methods it has."""

    job: Job[R]
    task_id: int
    num_tasks: int = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    def result(self) -> R:
        """Wait, and return what the function returned on this rank; raises as the job's does."""
        value: Any = self.job.results(raise_=False)[self.task_id]
        if value is self.job.exception() and value is not None:
            raise value
        return value  # type: ignore[no-any-return]  # what the function returned

    def stdout(self) -> str | None:
        """Return what this rank printed in all attempts; None if nothing yet."""
        return read_log_of_all_attempts(*self.job.need_run(), self.task_id)

    def stderr(self) -> str | None:
        """Return the same as `stdout()`: a rank has one log."""
        return self.stdout()

    @property
    def paths(self) -> JobPaths:
        """The files of this rank."""
        launch, index = self.job.need_run()
        run, logs = launch.paths.run(index), find_rank_logs(launch, index)
        first = run.attempt(1).round(0).rank_log(self.task_id)
        log = logs[self.task_id].path if self.task_id in logs else first
        return JobPaths(run.folder, stdout=log, stderr=log, result=run.call_result(self.task_id))


def _explain_unread_result(run: str, cause: BaseException) -> BaseException:
    if isinstance(cause, HpckitError):
        return cause
    hint = "it lies in the run's folder, and is unpickled here with the classes of this Python"
    message = f"run {run} completed, but its result cannot be read: {cause!r}"
    error = RunFailedError(message, hint=hint, run=run, state="completed", cause=None)
    error.__cause__ = cause
    return error


def open_job(folder: Path, index: int, one_stream: bool = False) -> Job[Any]:  # noqa: FBT001, FBT002
    """Return the job of a run of any process; raises ForeignError if it is another user's."""
    launch = load_launch(folder)
    if not isinstance(load_run_settings(launch, index)[0].params.get("call"), str):
        raise UsageError(f"{launch.runs[index].id} is no run of an executor", hint="hpckit.open() shows it")
    job = Job[Any](one_stream=one_stream)
    job.place.set_result((launch, index))
    WATCHER.watch(launch, [(index, job.settle)])
    return job
