"""The small jobs that hpckit queues for itself: one submits what did not fit, one resumes runs.

What did not fit into the queue is submitted in order, as far as there is room. Whoever calls holds
`alone`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.events import JobAdded
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.operations.add_job import add_job
from hpckit.operations.cluster_limits import what_fits
from hpckit.operations.frozen_script import rendered
from hpckit.operations.submit import Submission, reconcile, slurm_commands, submission_of
from hpckit.planning.jobs.service_jobs import auto_resume_job, backlog_job
from hpckit.planning.jobs.shared_jobs import throttle
from hpckit.record.launches import Launch, load_launch, load_settings, read_launch_history
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import queued_jobs


def keep_backlog_job(launch: Launch, commands: SlurmCommands, context: Context) -> str | None:
    """Queue a backlog job if jobs are left and no backlog job is queued; return its Slurm id.

    The job starts when the first of the queued jobs has ended. Raises SchedulerError.
    """
    launch = load_launch(launch.folder)
    history = read_launch_history(launch)
    if not history.waiting():
        return None
    living = queued_jobs(commands)
    own = context.environ.get("SLURM_JOB_ID")  # a backlog job that is running is not queued
    if history.backlog_job in living and history.backlog_job != own:
        return None
    after = [main for main in main_jobs_of(history) if main in living][:1]
    index, like = len(launch.jobs), launch.jobs[0].resources
    job = backlog_job(launch.id, index=index, like=like, cluster=launch.cluster, after=after)
    return hand_in(launch, JobAdded(at=context.now(), job=job, after=(), backlog=True), context)


def hand_in(launch: Launch, added: JobAdded, context: Context) -> str:
    """Add a job without runs, and submit it; return its id. Raises SchedulerError, UsageError."""
    add_job(launch, added, rendered(launch, added.job, context))
    commands = slurm_commands(launch.cluster.bin_dir, context)
    submission = submission_of(added.job, launch, commands, context)
    submission.submit()
    return submission.accepted[added.job.index]


def main_jobs_of(history: LaunchHistory) -> list[str]:
    """Return the Slurm ids of the accepted jobs that have runs, oldest first."""
    return [main for index, main in history.accepted.items() if history.jobs[index].runs]


def keep_auto_resume_job(launch: Launch, main_jobs: Iterable[str], context: Context) -> str | None:
    """Queue an auto-resume job behind jobs just resumed, if there was one before; return its id."""
    launch = load_launch(launch.folder)
    if read_launch_history(launch).auto_resume is None:
        return None
    try:
        return queue_auto_resume_job(launch, main_jobs, context)
    except SchedulerError as error:
        context.note(f"warning: the launch no longer has an auto-resume job: {error.message}")
        return None


def queue_auto_resume_job(
    launch: Launch, jobs: Iterable[str], context: Context, *, pause: bool = False
) -> str:
    """Queue an auto-resume job behind these jobs and return its id.

    With `pause` it does not start within the next minute. Raises SchedulerError, UsageError.
    """
    launch = load_launch(launch.folder)
    index, like = len(launch.jobs), launch.jobs[0].resources
    job = auto_resume_job(
        launch.id, index=index, like=like, cluster=launch.cluster, after=jobs, pause=pause
    )
    return hand_in(launch, JobAdded(at=context.now(), job=job, after=()), context)


def feed(
    launch: Launch, commands: SlurmCommands, context: Context
) -> tuple[dict[int, str], tuple[str, ...], tuple[JobSpec, ...]]:
    """Submit the waiting jobs that fit; raises SchedulerError.

    Returns the Slurm job of each run that was submitted, the main jobs, and what did not fit.
    """
    reconcile(launch, commands, context)
    history = read_launch_history(launch)
    waiting = history.waiting()
    if not waiting or launch.cluster.kind is not ClusterKind.slurm:
        return {}, (), ()
    now = what_fits(waiting, commands)
    chained, latest = is_chained(launch), None
    if chained:  # behind the job that was submitted last, if it is still queued
        living = queued_jobs(commands)
        latest = next((main for main in main_jobs_of(history)[-1:] if main in living), None)
    submission = Submission(
        launch=launch,
        jobs=now,
        new=False,
        may_wait=True,
        commands=commands,
        context=context,
        chained=chained,
        behind=latest,
    )
    jobs = submission.submit()
    return jobs, tuple(submission.accepted.values()), read_launch_history(launch).waiting()


def is_chained(launch: Launch) -> bool:
    """Whether arrays run one after the other, so that one limit holds for all of them."""
    firsts = [stage.first for stage in launch.stages] or [0]
    return any(throttle(load_settings(launch, first)[0]) is not None for first in firsts)
