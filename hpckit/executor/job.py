"""A job: the future of one call, whose run may outlive this process and be opened by another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from hpckit.api.handles import LaunchedRun, build_run_failed_error
from hpckit.errors import HpckitError, UsageError
from hpckit.executor.encoding import DelayedSubmission, load_own_pickle, read_call, read_result
from hpckit.executor.watcher import WATCHER
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, load_launch, load_run_settings, read_run_records
from hpckit.record.logs import find_rank_logs, list_attempt_rounds, list_run_attempts, read_whole_log
from hpckit.report.rows import build_run_row
from hpckit.values import dataclass

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPaths:
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
        self, submit_now: Callable[[Job[Any]], None] | None = None, *, one_stream: bool = False
    ) -> None:
        super().__init__()
        self._submit, self._one_stream = submit_now, one_stream
        self._submitted = threading.Event()
        self._place: tuple[Launch, int] | None = None
        self._end: RunState | None = None
        self._values: list[Any] = []

    def assign_run(self, launch: Launch, index: int) -> None:
        """Take note of the run; its executor calls this."""
        self._place = (launch, index)
        self._submitted.set()

    def refuse(self, error: BaseException) -> None:
        """End with an error that is not of the run; hpckit calls this itself."""
        if isinstance(error, CancelledError) and super().cancel():
            self.set_running_or_notify_cancel()
        elif not super().done():
            self.set_exception(error)
        self._submitted.set()

    def settle(self, view: RunView, *, late: bool) -> bool:
        """End as the run did; return False while a result is not visible, unless it is `late`."""
        if self._end is not None:
            return True
        error: BaseException | None = None
        if view.state is not RunState.completed:
            error = build_run_failed_error(build_run_row(view))
            error.__cause__ = self._read_exception(view.record)
        values = [self._read_result(rank, error) for rank in range(self.num_tasks)]
        if error is None and not late and any(isinstance(value, FileNotFoundError) for value, _ in values):
            return False
        self._values, self._end = [value for value, _ in values], view.state
        if view.state is RunState.cancelled:
            super().cancel()
            self.set_running_or_notify_cancel()
        elif error is not None or not values[0][1]:
            self.set_exception(error or values[0][0])
        else:
            self.set_result(values[0][0])
        return True

    def _read_result(self, rank: int, error: BaseException | None) -> tuple[Any, bool]:
        """Return what a rank returned and True, or the error in its place and False."""
        launch, index = self.need_run()
        try:
            return read_result(launch.paths.run(index), rank), True
        except FileNotFoundError as missing:
            return error or missing, False
        except Exception as unread:  # noqa: BLE001  # unpickling runs a user's own code
            return unread, False

    def _read_exception(self, record: RunRecord) -> BaseException | None:
        launch, index = self.need_run()
        rank = 0 if record.failure is None else record.failure.rank or 0
        round_ = launch.paths.run(index).attempt(record.attempt).round(record.round or 0)
        with suppress(Exception):  # there is none, or its class is not here, or takes other arguments
            found = load_own_pickle(round_.rank_exception_file(rank).with_suffix(".pkl"))
            return found if isinstance(found, BaseException) else None
        return None

    def _submit_now(self) -> None:
        if self._submit is not None and not self._submitted.is_set():
            self._submit(self)

    def need_run(self) -> tuple[Launch, int]:
        """Return the launch and the index of the run, once it is submitted; raises what prevented that."""
        self._submit_now()
        self._submitted.wait()
        if self._place is None:
            raise super().exception() or UsageError("this call was not submitted")
        return self._place

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
        launch, index = self.need_run()
        resources = load_run_settings(launch, index)[0].resources
        return max(1, resources.nodes * resources.tasks_per_node)

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, INTERRUPTED or UNKNOWN."""
        if self._end is not None:
            return self._end.upper()
        if super().done():  # without a run
            return "CANCELLED" if self.cancelled() else "FAILED"
        return self.run.state.upper()

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
        self._submit_now()
        if not wait([self], timeout).done:
            raise TimeoutError(f"the job has not ended after {timeout:g} s; its run continues")

    def result(self, timeout: float | None = None) -> R:
        """Wait, and return what the function returned (on rank 0).

        Raises RunFailedError if the run failed, with the exception of the function as its
        `__cause__`, CancelledError, and TimeoutError after `timeout` seconds.
        """
        self._submit_now()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error that `result` would raise; None if the call returned."""
        self._submit_now()
        return super().exception(timeout)

    def results(self, *, raise_: bool = True) -> list[Any]:
        """Wait, and return what each rank returned; with `raise_=False`, errors in place of the rest."""
        self.wait()
        if raise_:
            self.result()
        return self._values or [super().exception()] * self.num_tasks

    def cancel(self, check: bool = True) -> bool:  # noqa: FBT001, FBT002  # submitit's own
        """Ask for the end of the run; return whether it had not ended yet.

        The job is cancelled once the run has stopped: `wait()` for that. Raises SchedulerError if
        Slurm does not answer, unless `check` is false.
        """
        if super().done():
            return self.cancelled()
        try:
            self.run.cancel()
        except HpckitError:
            if check:
                raise
            return False
        return True

    def task(self, task_id: int) -> Task[R] | Self:
        """Return one rank's part; of a job with one task, the job itself."""
        if not 0 <= task_id < self.num_tasks:
            raise ValueError(f"task_id {task_id} must be between 0 and {self.num_tasks - 1}")
        return self if self.num_tasks == 1 else Task(self, task_id)

    def stdout(self) -> str | None:
        """Return what all ranks printed, with standard error, in all attempts; None if nothing yet."""
        texts = [text for rank in range(self.num_tasks) if (text := self.read_log(rank)) is not None]
        return "\n".join(texts) if texts else None

    def stderr(self) -> str | None:
        """Return the same as `stdout()`, as both are in one log; None with `stderr_to_stdout=True`."""
        return None if self._one_stream else self.stdout()

    def read_log(self, rank: int) -> str | None:
        """Return what one rank printed, from the first attempt on; None if nothing yet."""
        launch, index = self.need_run()
        found = [
            find_rank_logs(launch, index, attempt, number).get(rank)
            for attempt in list_run_attempts(launch, index)
            for number in list_attempt_rounds(launch, index, attempt)
        ]
        texts = [read_whole_log(log.path) for log in found if log is not None]
        return "".join(texts) if texts else None

    @property
    def paths(self) -> JobPaths:
        """The job's files; of several tasks, those of the first."""
        return self.list_paths(0)

    def list_paths(self, rank: int) -> JobPaths:
        """Return the files of one rank's part."""
        launch, index = self.need_run()
        paths, logs = launch.paths.run(index), find_rank_logs(launch, index)
        log = logs[rank].path if rank in logs else paths.attempt(1).round(0).rank_log(rank)
        return JobPaths(folder=paths.folder, stdout=log, stderr=log, result=paths.call_result(rank))

    def submission(self) -> DelayedSubmission:
        """Return the call as submitted; raises ForeignError for pickles that others could have written."""
        launch, index = self.need_run()
        return read_call(load_run_settings(launch, index)[0].params["call"])

    def __repr__(self) -> str:
        if self._place is None:
            return super().__repr__()
        return f"<Job {self._place[0].runs[self._place[1]].id}: {self.state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        launch, index = self.need_run()
        return (open_job, (launch.folder, index, self._one_stream))


class Task(Generic[R]):
    """One rank's part of a job with several; it ends with the job, whose methods it has."""

    num_tasks = 1

    def __init__(self, job: Job[R], task_id: int) -> None:
        self.job, self.task_id = job, task_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Task, (self.job, self.task_id))

    def result(self) -> R:
        """Wait, and return what the function returned on this rank; raises as the job's does."""
        value: Any = self.job.results(raise_=False)[self.task_id]
        error = self.job.exception()
        if error is not None and value is error:
            raise error
        return value  # type: ignore[no-any-return]  # what the function returned

    def stdout(self) -> str | None:
        """Return what this rank printed."""
        return self.job.read_log(self.task_id)

    stderr = stdout

    @property
    def paths(self) -> JobPaths:
        """The files of this rank."""
        return self.job.list_paths(self.task_id)


def open_job(folder: Path, index: int, one_stream: bool = False) -> Job[Any]:  # noqa: FBT001, FBT002
    """Return the job of a run of any process; raises ForeignError if it is another user's."""
    launch = load_launch(folder)
    if not isinstance(load_run_settings(launch, index)[0].params.get("call"), str):
        raise UsageError(f"{launch.runs[index].id} is no run of an executor", hint="hpckit.open() shows it")
    job = Job[Any](one_stream=one_stream)
    job.assign_run(launch, index)
    WATCHER.watch(launch, {index: job})
    return job
