"""What did not fit into the queue: handed in when there is room, job by job, in order.

Responsible for handing in frozen jobs of a launch that nobody has handed in yet, and for the tiny
job that goes on with it; it must not render those jobs, nor resume anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpckit.cli.adding import add_job
from hpckit.cli.context import Context, login_name
from hpckit.cli.rerender import rendered
from hpckit.cli.submission import Submission, reconcile, slurm_commands
from hpckit.model.events import JobAdded
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind
from hpckit.model.limits import SubmitLimits
from hpckit.model.plan import JobSpec, ResourceSpec
from hpckit.planning.jobs.arrays import FEEDERS, throttle
from hpckit.planning.jobs.service_jobs import feeder_job
from hpckit.record.launches import Launch, load_launch, load_settings, read_launch_history
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import count_queued, queued_jobs
from hpckit.slurm.site_query import Heard, submit_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What was handed in: what Slurm calls each run, and the main jobs; `left` is what was not."""

    jobs: dict[int, str]
    main_jobs: tuple[str, ...]
    left: tuple[JobSpec, ...]


def limits_for(
    asked: ResourceSpec, commands: SlurmCommands, heard: Heard | None = None
) -> SubmitLimits:
    """Return what the cluster accepts of such jobs, as far as it says, or has said already."""
    whose = login_name()
    return submit_limits(commands, asked.account, asked.partition, asked.qos, whose, heard)


def fitting(jobs: Sequence[JobSpec], limits: SubmitLimits, queued: int) -> tuple[JobSpec, ...]:
    """Return those of the jobs, from the first, that may be queued beside `queued` others.

    Room is left for the feeder where not all of them may.
    """
    if limits.queued is None:
        return tuple(jobs)
    elements = sum(job.elements for job in jobs)
    room = limits.queued - queued
    if elements > room:
        room -= FEEDERS
    taken: list[JobSpec] = []
    for job in jobs:
        room -= job.elements
        if room < 0:
            break
        taken.append(job)
    return tuple(taken)


def what_fits(
    jobs: Sequence[JobSpec], commands: SlurmCommands, heard: Heard | None = None
) -> tuple[JobSpec, ...]:
    """Return those of the jobs, from the first, that may be queued now."""
    limits = limits_for(jobs[0].resources, commands, heard)
    return fitting(jobs, limits, 0 if limits.queued is None else count_queued(commands))


def feed(launch: Launch, commands: SlurmCommands, context: Context) -> Fed:
    """Hand in what fits of what is left; the caller is `alone`. Raises SchedulerError."""
    reconcile(launch, commands, context)
    history = read_launch_history(launch)
    waiting = history.waiting()
    if not waiting or launch.cluster.kind is not ClusterKind.slurm:
        return Fed(jobs={}, main_jobs=(), left=())
    now = what_fits(waiting, commands)
    submission = Submission(
        launch=launch,
        jobs=now,
        new=False,
        may_wait=True,
        commands=commands,
        context=context,
        chained=is_chained(launch),
        behind=_latest(history, commands) if is_chained(launch) else None,
    )
    jobs = submission.submit()
    return Fed(
        jobs=jobs,
        main_jobs=tuple(submission.accepted.values()),
        left=read_launch_history(launch).waiting(),
    )


def is_chained(launch: Launch) -> bool:
    """Whether arrays follow each other, so that one bound holds over all of them."""
    firsts = [stage.first for stage in launch.stages] or [0]
    return any(throttle(load_settings(launch, one)[0]) is not None for one in firsts)


def keep_feeder(launch: Launch, commands: SlurmCommands, context: Context) -> str | None:
    """Queue a feeder where something is left and none is queued; return what Slurm calls it.

    The caller is `alone`. It starts when the first of the jobs that are queued has ended. Raises
    SchedulerError.
    """
    launch = load_launch(launch.folder)
    history = read_launch_history(launch)
    if not history.waiting():
        return None
    living = queued_jobs(commands)
    if history.feeder_job in living and history.feeder_job != _own(context):
        return None
    after = [main for main in _mains(history) if main in living][:1]
    index, like = len(launch.jobs), launch.jobs[0].resources
    job = feeder_job(launch.id, index=index, like=like, cluster=launch.cluster, after=after)
    return hand_in(launch, JobAdded(at=context.now(), job=job, after=(), feeder=True), context)


def hand_in(launch: Launch, added: JobAdded, context: Context) -> str:
    """Add a job without runs to the launch, and return what Slurm calls it; the caller is `alone`.

    Raises SchedulerError, UsageError.
    """
    add_job(launch, added, rendered(launch, added.job, context))
    submission = Submission(
        launch=load_launch(launch.folder),
        jobs=(added.job,),
        new=False,
        commands=slurm_commands(launch.cluster.bin_dir, context),
        context=context,
    )
    submission.submit()
    return submission.accepted[added.job.index]


def _own(context: Context) -> str | None:
    """Return the job this process runs in: a feeder is alive, and yet no help any more."""
    return context.environ.get("SLURM_JOB_ID")


def _mains(history: LaunchHistory) -> list[str]:
    """Return what Slurm calls the jobs with runs that it was given, oldest first."""
    return [main for index, main in history.accepted.items() if history.jobs[index].runs]


def _latest(history: LaunchHistory, commands: SlurmCommands) -> str | None:
    """Return the job of the launch that was handed in last, if it is still queued."""
    living = queued_jobs(commands)
    return next((main for main in _mains(history)[-1:] if main in living), None)
