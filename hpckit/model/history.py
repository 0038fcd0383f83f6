"""What the events of a launch say about its runs: which job each belongs to, and the requests.

The outcome of attempts is in model/run.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.model import events
from hpckit.model.elastic import SatelliteSpec
from hpckit.model.ids import JobId, is_slurm_job_id
from hpckit.model.plan import JobSpec
from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The latest resume of a run: the job it was given to, and how many attempts came before."""

    job_index: int
    after: int


@dataclass(slots=True, kw_only=True)
class LaunchHistory:
    """What is recorded about a launch's runs, by their index.

    `jobs` are all jobs in the order of their indices. `slurm_jobs` is Slurm's id of the latest submission of
    a run, `accepted` Slurm's id by job index. `refused` is the scheduler's reason. `executors` is the local
    executor that is responsible for a run. `successors` wait for the end of a run's present job. `fresh` is
    the number of attempts before the user last resumed the run by hand, `idle` the number of consecutive jobs
    since then in which it never began. `auto_resume` is the index of the latest auto-resume job, `backlog`
    that of the latest backlog job. `cluster` is the name of the cluster that has the jobs, empty if unknown.
    `untouched` are frozen jobs whose submission was never tried, or was deferred. `known` are runs of other
    launches that replace requested ones, by launch. `rerun_of` is the run that a run starts again, with its
    launch. `settings_changes` are those that resumes gave a run, the present one last. `satellites` are the
    indices of the jobs that bring nodes to a run. `dropped` are successors that were given up, by job index:
    one that starts all the same has nothing to do.
    """

    jobs: list[JobSpec]
    slurm_jobs: dict[int, str] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    resumed: dict[int, Resumption] = field(default_factory=dict)
    executors: dict[int, events.LocalStarted] = field(default_factory=dict)
    accepted: dict[int, str] = field(default_factory=dict)
    successors: dict[int, Resumption] = field(default_factory=dict)
    fresh: dict[int, int] = field(default_factory=dict)
    idle: dict[int, int] = field(default_factory=dict)
    cluster: str = ""
    auto_resume: int | None = None
    backlog: int | None = None
    backlog_jobs: set[int] = field(default_factory=set)
    untouched: set[int] = field(default_factory=set)
    known: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rerun_of: dict[int, tuple[str, int]] = field(default_factory=dict)
    settings_changes: dict[int, tuple[events.SettingsChanged, ...]] = field(default_factory=dict)
    satellites: dict[int, tuple[int, ...]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)

    def list_unsubmitted_jobs(self) -> tuple[JobSpec, ...]:
        """Return the frozen jobs that are still to be submitted, in their order."""
        left = [self.jobs[index] for index in sorted(self.untouched)]
        gone = self.cancelled | self.resumed.keys()
        return tuple(job for job in left if not gone.issuperset(job.runs))

    def is_auto_resume_job(self, job_index: int) -> bool:
        """Whether this job without runs is an auto-resume job, and not a backlog job."""
        return job_index not in self.backlog_jobs

    def find_job_of_run(self, run: int) -> JobSpec:
        """Return the job that a run was given to last."""
        resumption = self.resumed.get(run)
        if resumption is not None:
            return self.jobs[resumption.job_index]
        return next(job for job in self.jobs if run in job.runs)

    def find_latest_job_of_run(self, run: int) -> JobSpec:
        """Return what was asked for last to continue a run: its successor's job, if there was one."""
        successor = self.successors.get(run)
        return self.find_job_of_run(run) if successor is None else self.jobs[successor.job_index]

    def count_attempts_before_job(self, run: int) -> int:
        """Return how many attempts a run had before its present job; 0 if that job was frozen."""
        resumption = self.resumed.get(run)
        return 0 if resumption is None else resumption.after

    def find_successor_job(self, run: int) -> str | None:
        """Return Slurm's id of the successor of a run's present job, or None."""
        successor = self.successors.get(run)
        return None if successor is None else self.accepted.get(successor.job_index)

    def list_satellite_jobs(self, run: int) -> dict[str, SatelliteSpec]:
        """Return the jobs that were to bring nodes to a run, by Slurm's id."""
        found = (self.jobs[index] for index in self.satellites.get(run, ()))
        return {
            self.accepted[job.index]: job.satellite
            for job in found
            if job.satellite is not None and job.index in self.accepted
        }

    @property
    def backlog_job(self) -> str | None:
        """Slurm's id of the latest backlog job, None if there never was one."""
        return None if self.backlog is None else self.accepted.get(self.backlog)

    @property
    def auto_resume_job(self) -> str | None:
        """Slurm's id of the latest auto-resume job, None if there never was one."""
        return None if self.auto_resume is None else self.accepted.get(self.auto_resume)

    def apply_event(self, event: events.Event) -> None:
        """Take the next event into account; an event of an unknown job changes nothing."""
        match event:
            case events.JobAdded():
                self._add_job(event)
            case events.SubmitIntended():
                self.untouched.discard(event.job_index)
            case events.Submitted() if self._knows_job(event.job_index) and is_slurm_job_id(event.job):
                self._record_submission(self.jobs[event.job_index], event)
            case events.SubmitRefused() if self._knows_job(event.job_index):
                self._record_refused_submission(self.jobs[event.job_index], event)
            case events.CancelRequested():
                self.cancelled.update(event.runs)
            case events.LocalStarted():
                self._assign_runs_to_local_executor(event)
            case events.SettingsChanged():
                for run in event.runs:
                    self.settings_changes[run] = (*self.settings_changes.get(run, ()), event)
            case events.RunsKnown() | events.RunsRerun():
                self._record_runs_of_other_launches(event)

    def _record_runs_of_other_launches(self, event: events.RunsKnown | events.RunsRerun) -> None:
        if isinstance(event, events.RunsKnown):
            self.known[event.launch] = event.runs
        else:
            self.rerun_of |= {run: (event.launch, of) for run, of in enumerate(event.runs)}

    def _knows_job(self, job_index: int) -> bool:
        return 0 <= job_index < len(self.jobs)

    def _add_job(self, event: events.JobAdded) -> None:
        job = event.job
        if job.index == len(self.jobs):
            self.jobs.append(job)
        if job.index > len(self.jobs) or self.jobs[job.index] != job:
            return
        self.untouched.discard(job.index)
        if job.satellite is not None:
            known = self.satellites.get(job.satellite.run, ())
            self.satellites[job.satellite.run] = (*known, job.index)
        elif event.backlog:
            self.backlog = job.index
            self.backlog_jobs.add(job.index)
        elif not job.runs:
            self.auto_resume = job.index
        for run, after in zip(job.runs, event.after, strict=False):
            given = Resumption(job_index=job.index, after=after)
            if event.successor:
                self._queue_successor_of_run(run, given)
            else:
                self._record_resumption(run, given, fresh=event.fresh)

    def _queue_successor_of_run(self, run: int, given: Resumption) -> None:
        """Queue a job behind the run's present one: the earlier successor, if that has begun."""
        earlier = self.successors.get(run)
        if earlier is not None and earlier.after < given.after:
            self.resumed[run] = earlier
            self.slurm_jobs.pop(run, None)
            if earlier.job_index in self.accepted:
                self.slurm_jobs[run] = self.accepted[earlier.job_index]
        self.successors[run] = given

    def _record_resumption(self, run: int, given: Resumption, *, fresh: bool) -> None:
        begun = given.after > self.count_attempts_before_job(run)
        had_a_job = run in self.slurm_jobs or run in self.executors
        self.idle[run] = 0 if begun or fresh or not had_a_job else self.idle.get(run, 0) + 1
        if fresh:
            self.fresh[run] = given.after
        self.resumed[run] = given
        self.slurm_jobs.pop(run, None)
        self.successors.pop(run, None)
        self.refused.pop(run, None)
        self.cancelled.discard(run)

    def _record_submission(self, job: JobSpec, event: events.Submitted) -> None:
        self.untouched.discard(job.index)
        self.cluster = event.cluster or self.cluster
        earlier = self.accepted.setdefault(job.index, event.job)
        self.accepted[job.index] = event.job
        if not job.runs or self._is_successor_job(job) or job.index in self.dropped:
            return
        self.slurm_jobs |= map_runs_to_job_ids(job, event.job)
        for run in job.runs:
            self.refused.pop(run, None)
        # Submitted again by hand: the cancellation was meant for the earlier job.
        if earlier != event.job:
            self.cancelled.difference_update(job.runs)

    def _record_refused_submission(self, job: JobSpec, event: events.SubmitRefused) -> None:
        if event.later:
            self.untouched.add(job.index)
            return
        if job.satellite is not None:
            known = self.satellites.get(job.satellite.run, ())
            self.satellites[job.satellite.run] = tuple(index for index in known if index != job.index)
        if self._is_successor_job(job):
            for run in job.runs:
                del self.successors[run]
            self.dropped.add(job.index)
            return
        for run in job.runs:
            resumption = self.resumed.get(run)
            if resumption is not None and resumption.job_index == job.index:
                del self.resumed[run]
            self.refused[run] = event.message

    def _is_successor_job(self, job: JobSpec) -> bool:
        """Whether this job waits for the end of the present job of its run."""
        given = (self.successors.get(run) for run in job.runs)
        return any(request is not None and request.job_index == job.index for request in given)

    def _assign_runs_to_local_executor(self, event: events.LocalStarted) -> None:
        for run in (run for job in self.jobs for run in job.runs):
            resumption = self.resumed.get(run)
            given = not event.jobs if resumption is None else resumption.job_index in event.jobs
            if given:
                self.executors[run] = event


def build_launch_history(jobs: Iterable[JobSpec], history: Iterable[events.Event]) -> LaunchHistory:
    """Return what these events say about a launch with these jobs, which may include added ones."""
    frozen = list(jobs)
    known = LaunchHistory(jobs=frozen, untouched={job.index for job in frozen if job.runs})
    for event in history:
        known.apply_event(event)
    return known


def map_runs_to_job_ids(job: JobSpec, main: str) -> dict[int, str]:
    """Return the Slurm job of each run of a submitted job: `123`, or `123_4` in an array.

    Any element of a shared job may take a run, so the run waits for all of them.
    """
    number = JobId.parse(main).main
    if not job.is_array or job.shared_job is not None:
        return dict.fromkeys(job.runs, str(number))
    return {run: str(JobId(number, element)) for element, run in enumerate(job.runs)}
