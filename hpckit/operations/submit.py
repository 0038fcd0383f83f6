"""Submits the jobs of a frozen launch to Slurm: all of them, or none.

Records an intent before sbatch and its outcome after, and cancels accepted jobs if Slurm refuses a
later one. After a crash, a lost connection or an sbatch that did not answer there is an intent
alone: the job is found by its name, and adopted, cancelled or closed.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from hpckit.context import Context, Tell
from hpckit.errors import (
    HeldError,
    SchedulerAbsentError,
    SchedulerAwayError,
    SchedulerError,
    SchedulerRefusedError,
)
from hpckit.model.events import CancelRequested, Event, JobAdded, SubmitIntended, SubmitRefused, Submitted
from hpckit.model.history import map_runs_to_job_ids
from hpckit.model.plan import JobSpec
from hpckit.planning.jobs.stage_jobs import build_slurm_dependency
from hpckit.record.freeze import remove_launch_folder
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch, load_launch, read_launch_events, read_launch_history
from hpckit.record.lock import is_lock_held
from hpckit.slurm.cached_query import ask_cluster_config
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands, is_submit_limit_error
from hpckit.slurm.query import ask_ids_of_queued_jobs, find_jobs_by_name, observe_jobs
from hpckit.values import dataclass, field
from hpckit.views.launch_view import list_unconfirmed_jobs

_PAUSE_S = 5.0
SBATCH_LIMIT = timedelta(seconds=90)
"""Older calls of sbatch are no longer in progress: they are killed earlier."""


def require_slurm_commands(launch_bin_dir: str | None, context: Context) -> SlurmCommands:
    """Return Slurm's commands for a launch; raises SchedulerAwayError without sbatch."""
    commands = SlurmCommands(bin_dir=launch_bin_dir, environ=context.environ)
    commands.build_command_line("sbatch")
    return commands


def resolve_unknown_submissions(launch: Launch, commands: SlurmCommands, context: Context) -> None:
    """Settle the submissions without a known outcome by looking up their job names in Slurm.

    A frozen job that Slurm never received is recorded as still to be submitted. Raises
    SchedulerAwayError if Slurm does not answer, HeldError if a submission may still be in progress.
    """
    added = {event.job.index for event in read_launch_events(launch) if isinstance(event, JobAdded)}
    for job in list_unconfirmed_jobs(launch):
        index, name, now = job.index, job.name, context.now()
        left = time_submission_may_still_take(launch, job, now)
        if left is None:
            continue  # a supervisor is queueing it, and settles it
        if left > timedelta():
            raise HeldError(
                f"{name} is being submitted, or its launcher was killed meanwhile",
                hint=f"ask again in {left.total_seconds():.0f} s; `hpckit watch` waits by itself",
            )
        found = find_jobs_by_name(name, commands)
        record_launch_event(launch.paths, submission_outcome(job, found, now, later=index not in added))


def time_submission_may_still_take(launch: Launch, job: JobSpec, now: datetime) -> timedelta | None:
    """Return for how long the sbatch of a job of unknown outcome may still be at it; 0 if not.

    None if that is not known: while Slurm does not answer, who queues a successor tries again.
    """
    if any(is_lock_held(launch.paths.run(run).successor_lock) for run in job.runs):
        return None
    return time_sbatch_may_still_take(launch, job, now)


def time_sbatch_may_still_take(launch: Launch, job: JobSpec, now: datetime) -> timedelta:
    """Return for how long an sbatch without an outcome may go on, even if its caller is gone."""
    told = [
        event
        for event in read_launch_events(launch)
        if isinstance(event, SubmitIntended | Submitted | SubmitRefused) and event.job_index == job.index
    ]
    if not told or not isinstance(told[-1], SubmitIntended):
        return timedelta()
    return max(told[-1].at + SBATCH_LIMIT - now, timedelta())


def submission_outcome(
    job: JobSpec, found: Sequence[str], at: datetime, *, later: bool = False
) -> Submitted | SubmitRefused:
    """Return the outcome of a job's submission, given the ids that Slurm has under its name."""
    if found:
        return Submitted(at=at, job_index=job.index, job=found[-1], adopted=True)
    message = f"Slurm has no job named {job.name}"
    return SubmitRefused(at=at, job_index=job.index, message=message, later=later)


@dataclass(slots=True, kw_only=True)
class Submission:
    """Jobs of one launch being submitted: `accepted` holds the main id of each job index.

    `new` means that the launch has no other jobs: then a refusal removes its folder. With
    `may_wait`, jobs beyond the user's limit of queued jobs are left for later. With `chained` each
    job waits for the end of the one before it, the first one for `behind`. Progress is drawn unless
    `quiet`. `living` is the content of the queue, if it had to be read.
    """

    launch: Launch
    jobs: Sequence[JobSpec]
    new: bool
    commands: SlurmCommands
    context: Context
    may_wait: bool = False
    chained: bool = False
    behind: str | None = None
    accepted: dict[int, str] = field(default_factory=dict)
    quiet: bool = True
    living: frozenset[str] | None = field(default=None, init=False)

    def submit_with_retries(self, patience: timedelta) -> dict[int, str]:
        """Submit as `submit` does; while Slurm does not answer, retry until `patience` is over.

        Looks first for jobs that Slurm accepted without an answer, so nothing is submitted twice.
        """
        deadline = self._now + patience
        runs: dict[int, str] | None = None
        retried = False
        while runs is None:
            try:
                runs = self.submit()
            except SchedulerAbsentError:
                raise
            except SchedulerAwayError:
                if self._now >= deadline:
                    raise
                runs, retried = self._adopt_jobs_slurm_already_has(deadline), True
        if retried:
            # An sbatch that did not answer may have submitted a job after all.
            with contextlib.suppress(SchedulerError):
                for job in self.jobs:
                    known = self.accepted[job.index]
                    found = self._filter_living_jobs(find_jobs_by_name(job.name, self.commands))
                    cancel_jobs([other for other in found if other != known], self.commands)
        return runs

    def _adopt_jobs_slurm_already_has(self, deadline: datetime) -> dict[int, str] | None:
        """Return the jobs of the runs if Slurm has all of them; None if one is missing."""
        while True:
            self.context.sleep(_PAUSE_S)
            try:
                found = {job: find_jobs_by_name(job.name, self.commands) for job in self.jobs}
            except SchedulerAwayError:
                if self._now >= deadline:
                    raise
                continue
            break
        runs: dict[int, str] = {}
        for job, mains in found.items():
            if not mains:
                return None
            self._record_event(Submitted(at=self._now, job_index=job.index, job=mains[-1], adopted=True))
            self.accepted[job.index] = mains[-1]
            runs |= map_runs_to_job_ids(job, mains[-1])
        return runs

    def submit(self) -> dict[int, str]:
        """Submit every job and return the Slurm job of each run.

        Raises SchedulerError. If Slurm refuses, the accepted jobs of this launch are cancelled; if
        none was accepted, the folder of a new launch is removed. If Slurm does not answer, the
        outcome is unknown: the folder stays, with the intent, for `hpckit doctor`.
        """
        with self.context.show_progress("submitting", quiet=self.quiet) as tell:
            return self._submit_all(tell)

    def _submit_all(self, tell: Tell) -> dict[int, str]:
        runs: dict[int, str] = {}
        for done, job in enumerate(self.jobs):
            tell(done, len(self.jobs))
            try:
                self.accepted[job.index] = self._submit_job(job)
            except SchedulerRefusedError as error:
                # Other jobs of the launch are queued now: this one may follow later.
                if self.may_wait and is_submit_limit_error(error) and (self.accepted or not self.new):
                    self._record_event(
                        SubmitRefused(at=self._now, job_index=job.index, message=error.message, later=True)
                    )
                    return runs
                raise self._check_and_undo_refusal(error, job) from error
            except SchedulerAbsentError as error:
                raise self._record_refusal_and_cancel_rest(error, job) from error
            except SchedulerAwayError as error:
                raise self._cancel_after_unknown_outcome(error) from error
            runs |= map_runs_to_job_ids(job, self.accepted[job.index])
        return runs

    def _submit_job(self, job: JobSpec) -> str:
        # Imported here: it imports submitit, which only a submission needs.
        from hpckit.slurm.submit import submit_job  # noqa: PLC0415

        text = self.launch.paths.script(job.index).read_text(encoding="utf-8")
        self._record_event(SubmitIntended(at=self._now, job_index=job.index, job_name=job.name))
        accepted = submit_job(
            text,
            job,
            self.launch.folder,
            self.commands,
            behind=self.behind,
            waits=self._find_stage_dependency(job),
        )
        if self.chained:
            self.behind = accepted
        cluster = ask_cluster_config(self.commands, self._now).get("ClusterName", "")
        self._record_event(Submitted(at=self._now, job_index=job.index, job=accepted, cluster=cluster))
        return accepted

    def _find_stage_dependency(self, job: JobSpec) -> str | None:
        """Return what a job of a stage waits for, in addition to the end of the one before it."""
        if not self.launch.stages or not job.runs:
            return None
        if self.living is None and not self.new:
            self.living = ask_ids_of_queued_jobs(self.commands)
        history = read_launch_history(self.launch)
        living = None if self.living is None else {*self.living, *self.accepted.values()}
        return build_slurm_dependency(job, self.launch.stages, history, living)

    def _check_and_undo_refusal(self, error: SchedulerError, job: JobSpec) -> SchedulerError:
        try:
            # An sbatch that was killed, or a wrapper around it, may have submitted the job anyway.
            strays = self._filter_living_jobs(find_jobs_by_name(job.name, self.commands))
        except SchedulerError:
            return self._cancel_after_unknown_outcome(error)
        if strays:
            self.accepted[job.index] = strays[-1]
            self._record_event(Submitted(at=self._now, job_index=job.index, job=strays[-1], adopted=True))
            return type(error)(f"{error.message}; {self._cancel_accepted_jobs()}", hint=error.hint)
        return self._record_refusal_and_cancel_rest(error, job)

    def _filter_living_jobs(self, jobs: Sequence[str]) -> list[str]:
        """Return the jobs not ended; accounting also lists refused submissions (22.05)."""
        seen = observe_jobs(jobs, self.commands, self._now) if jobs else {}
        return [job for job in jobs if job not in seen or not seen[job].state.ended]

    def _record_refusal_and_cancel_rest(self, error: SchedulerError, job: JobSpec) -> SchedulerError:
        """Record a definite refusal and leave nothing half-submitted."""
        self._record_event(SubmitRefused(at=self._now, job_index=job.index, message=error.message))
        if not self.accepted:
            if self.new:
                remove_launch_folder(self.launch.folder)
            return type(error)(f"{error.message}; nothing was submitted", hint=error.hint)
        return type(error)(f"{error.message}; {self._cancel_accepted_jobs(but=job.runs)}", hint=error.hint)

    def _cancel_after_unknown_outcome(self, error: SchedulerError) -> SchedulerError:
        taken_back = f"; {self._cancel_accepted_jobs()}" if self.accepted else ""
        doctor = f"hpckit doctor {shlex.quote(str(self.launch.folder))}"
        return type(error)(
            f"{error.message}; whether the job was accepted is not known{taken_back}",
            hint=f"{error.hint}\nwhen Slurm answers again, `{doctor}` finds out and tidies up",
        )

    def _cancel_accepted_jobs(self, *, but: Container[int] = ()) -> str:
        """Cancel the accepted jobs, give up all runs except `but`; return a message about it."""
        jobs = list(self.accepted.values())
        runs = tuple(sorted(run for job in self.jobs for run in job.runs if run not in but))
        self._record_event(CancelRequested(at=self._now, runs=runs))
        try:
            cancel_jobs(jobs, self.commands)
        except SchedulerError as error:
            return (
                f"what was accepted of this launch could not be cancelled ({error.message}): "
                f"scancel {' '.join(jobs)}"
            )
        return f"what was accepted of this launch was cancelled: {', '.join(jobs)}"

    @property
    def _now(self) -> datetime:
        return self.context.now()

    def _record_event(self, event: Event) -> None:
        record_launch_event(self.launch.paths, event)


def build_job_submission(
    job: JobSpec, launch: Launch, commands: SlurmCommands, context: Context
) -> Submission:
    """Return the submission of a job that was added to a launch since that was read."""
    now = load_launch(launch.folder)
    return Submission(launch=now, jobs=(job,), new=False, commands=commands, context=context)


class SettledAs(StrEnum):
    """What was done about such a job. `closed`: Slurm has no such job, and this was recorded."""

    untouched = "untouched"
    adopted = "adopted"
    cancelled = "cancelled"
    closed = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconfirmedJob:
    """A job of unknown outcome: `jobs` are the ids Slurm knows under its name, oldest first."""

    launch: Launch
    job: JobSpec
    jobs: tuple[str, ...]


def find_unconfirmed_jobs(launches: Iterable[Launch], context: Context) -> Iterator[UnconfirmedJob]:
    """Yield the unconfirmed jobs of launches; raises SchedulerError."""
    for launch in launches:
        for job in list_unconfirmed_jobs(launch):
            jobs = find_jobs_by_name(job.name, _build_slurm_commands(launch, context))
            yield UnconfirmedJob(launch=launch, job=job, jobs=jobs)


def adopt_or_cancel_unconfirmed_job(found: UnconfirmedJob, context: Context, *, adopt: bool) -> SettledAs:
    """Adopt the jobs that Slurm has, or cancel them; raises SchedulerError.

    What may still be being submitted, and Slurm does not have yet, is left alone.
    """
    paths = found.launch.paths
    left = time_submission_may_still_take(found.launch, found.job, context.now())
    if not found.jobs and left != timedelta():
        soon = "soon" if left is None else f"in {left.total_seconds():.0f} s"
        context.note(f"{found.job.name} may still be in submission: ask again {soon}")
        return SettledAs.untouched
    if found.jobs and not adopt:
        record_launch_event(paths, CancelRequested(at=context.now(), runs=found.job.runs))
        cancel_jobs(found.jobs, _build_slurm_commands(found.launch, context))
    record_launch_event(paths, submission_outcome(found.job, found.jobs, context.now()))
    if not found.jobs:
        return SettledAs.closed
    return SettledAs.adopted if adopt else SettledAs.cancelled


def _build_slurm_commands(launch: Launch, context: Context) -> SlurmCommands:
    return SlurmCommands(bin_dir=launch.cluster.bin_dir, environ=context.environ)
