"""The small jobs that hpckit queues for itself: one submits what did not fit, one resumes runs.

What did not fit into the queue is submitted in order, as far as there is room. Whoever calls holds `alone`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.events import JobAdded
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.operations.add_job import record_added_job
from hpckit.operations.cluster_limits import ask_which_jobs_fit_queue
from hpckit.operations.frozen_script import render_frozen_script
from hpckit.operations.submit import (
    Submission,
    build_job_submission,
    require_slurm_commands,
    resolve_unknown_submissions,
)
from hpckit.planning.jobs.service_jobs import build_auto_resume_job, build_job_submitting_backlog
from hpckit.planning.jobs.shared_jobs import find_max_concurrent_runs
from hpckit.record.launches import Launch, load_launch, load_run_settings, read_launch_history
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import ask_ids_of_queued_jobs


def ensure_backlog_job(launch: Launch, commands: SlurmCommands, context: Context) -> str | None:
    """Queue a backlog job if jobs are left and no backlog job is queued; return its Slurm id.

    The job starts when the first of the queued jobs has ended. Raises SchedulerError.
    """
    launch = load_launch(launch.folder)
    history = read_launch_history(launch)
    if not history.list_unsubmitted_jobs():
        return None
    living = ask_ids_of_queued_jobs(commands)
    own = context.environ.get("SLURM_JOB_ID")  # a backlog job that is running is not queued
    if history.backlog_job in living and history.backlog_job != own:
        return None
    after = [main for main in list_slurm_ids_of_run_jobs(history) if main in living][:1]
    index, like = len(launch.jobs), launch.jobs[0].resources
    job = build_job_submitting_backlog(launch.id, index=index, like=like, cluster=launch.cluster, after=after)
    return add_and_submit_job(launch, JobAdded(at=context.now(), job=job, after=(), backlog=True), context)


def add_and_submit_job(launch: Launch, added: JobAdded, context: Context) -> str:
    """Add a job without runs, and submit it; return its id. Raises SchedulerError, UsageError."""
    record_added_job(launch, added, render_frozen_script(launch, added.job, context))
    commands = require_slurm_commands(launch.cluster.bin_dir, context)
    submission = build_job_submission(added.job, launch, commands, context)
    submission.submit()
    return submission.accepted[added.job.index]


def list_slurm_ids_of_run_jobs(history: LaunchHistory) -> list[str]:
    """Return the Slurm ids of the accepted jobs that have runs, oldest first."""
    return [main for index, main in history.accepted.items() if history.jobs[index].runs]


def renew_auto_resume_job(launch: Launch, main_jobs: Iterable[str], context: Context) -> str | None:
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
    job = build_auto_resume_job(
        launch.id, index=index, like=like, cluster=launch.cluster, after=jobs, pause=pause
    )
    return add_and_submit_job(launch, JobAdded(at=context.now(), job=job, after=()), context)


def submit_unsubmitted_jobs_that_fit(
    launch: Launch, commands: SlurmCommands, context: Context
) -> tuple[dict[int, str], tuple[str, ...], tuple[JobSpec, ...]]:
    """Submit the waiting jobs that fit; raises SchedulerError.

    Returns the Slurm job of each run that was submitted, the main jobs, and what did not fit.
    """
    resolve_unknown_submissions(launch, commands, context)
    history = read_launch_history(launch)
    waiting = history.list_unsubmitted_jobs()
    if not waiting or launch.cluster.kind is not ClusterKind.slurm:
        return {}, (), ()
    now = ask_which_jobs_fit_queue(waiting, commands)
    chained, latest = are_arrays_chained(launch), None
    if chained:  # behind the job that was submitted last, if it is still queued
        living = ask_ids_of_queued_jobs(commands)
        latest = next((main for main in list_slurm_ids_of_run_jobs(history)[-1:] if main in living), None)
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
    return (jobs, tuple(submission.accepted.values()), read_launch_history(launch).list_unsubmitted_jobs())


def are_arrays_chained(launch: Launch) -> bool:
    """Whether arrays run one after the other, so that one limit holds for all of them."""
    firsts = [stage.first for stage in launch.stages] or [0]
    return any(find_max_concurrent_runs(load_run_settings(launch, first)[0]) is not None for first in firsts)
