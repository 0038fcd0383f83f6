"""What the events of a launch say of its runs: whose job they are, and what was asked of them.

Responsible for the meaning of the launcher's own record; it must not read one from disk, nor know
what came of an attempt (model/run).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hpckit.model import events
from hpckit.model.ids import JobId
from hpckit.model.plan import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The latest resume of a run: the job it was given to, and how many attempts came before."""

    job_index: int
    after: int


@dataclass(slots=True, kw_only=True)
class LaunchHistory:
    """What is recorded of a launch's runs, by their index.

    `jobs` are all there are, in the order of their indices; `slurm_jobs` what Slurm calls the
    latest submission of a run; `refused` is the scheduler's reason; `executors` the local
    executor whose turn a run is.
    """

    jobs: list[JobSpec]
    slurm_jobs: dict[int, str] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    resumed: dict[int, Resumption] = field(default_factory=dict)
    executors: dict[int, events.LocalStarted] = field(default_factory=dict)
    _accepted: dict[int, str] = field(default_factory=dict)

    def job_of(self, run: int) -> JobSpec:
        """Return the job that a run was given to last."""
        resumption = self.resumed.get(run)
        if resumption is not None:
            return self.jobs[resumption.job_index]
        return next(job for job in self.jobs if run in job.runs)

    def attempts_before(self, run: int) -> int:
        """Return how many attempts a run had when it was given to its job; 0 where frozen so."""
        resumption = self.resumed.get(run)
        return 0 if resumption is None else resumption.after

    def take(self, event: events.Event) -> None:
        """Take the next event into account; one about a job nobody knows changes nothing."""
        match event:
            case events.JobAdded():
                self._add(event)
            case events.Submitted() if event.job_index < len(self.jobs):
                self._submitted(self.jobs[event.job_index], event)
            case events.SubmitRefused() if event.job_index < len(self.jobs):
                self._refused(self.jobs[event.job_index], event)
            case events.CancelRequested():
                self.cancelled.update(event.runs)
            case events.LocalStarted():
                self._started(event)
            case _:
                pass

    def _add(self, event: events.JobAdded) -> None:
        job = event.job
        if job.index == len(self.jobs):
            self.jobs.append(job)
        if job.index > len(self.jobs) or self.jobs[job.index] != job:
            return
        for run, after in zip(job.runs, event.after, strict=False):
            self.resumed[run] = Resumption(job_index=job.index, after=after)
            self.slurm_jobs.pop(run, None)
            self.refused.pop(run, None)
            self.cancelled.discard(run)

    def _submitted(self, job: JobSpec, event: events.Submitted) -> None:
        self.slurm_jobs |= job_ids(job, event.job)
        for run in job.runs:
            self.refused.pop(run, None)
        # Submitted once more, by hand: the cancellation was meant for the earlier job.
        if self._accepted.setdefault(job.index, event.job) != event.job:
            self.cancelled.difference_update(job.runs)
        self._accepted[job.index] = event.job

    def _refused(self, job: JobSpec, event: events.SubmitRefused) -> None:
        for run in job.runs:
            resumption = self.resumed.get(run)
            if resumption is not None and resumption.job_index == job.index:
                del self.resumed[run]
            self.refused[run] = event.message

    def _started(self, event: events.LocalStarted) -> None:
        for run in (run for job in self.jobs for run in job.runs):
            resumption = self.resumed.get(run)
            given = not event.jobs if resumption is None else resumption.job_index in event.jobs
            if given:
                self.executors[run] = event


def read_history(jobs: Iterable[JobSpec], history: Iterable[events.Event]) -> LaunchHistory:
    """Return what these events say of a launch with these jobs (those added since may be in)."""
    known = LaunchHistory(jobs=list(jobs))
    for event in history:
        known.take(event)
    return known


def job_ids(job: JobSpec, main: str) -> dict[int, str]:
    """Return the Slurm job of each run of a submitted job: `123`, or `123_4` in an array."""
    number = JobId.parse(main).main
    if not job.is_array:
        return {job.runs[0]: str(number)}
    return {run: str(JobId(number, element)) for element, run in enumerate(job.runs)}
