"""Submits the jobs that did not fit into the queue before, in order, as far as there is room."""

from __future__ import annotations

from hpckit.context import Context
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.operations.cluster_limits import what_fits
from hpckit.operations.service_jobs import main_jobs_of
from hpckit.operations.submit import Submission, reconcile
from hpckit.planning.jobs.arrays import throttle
from hpckit.record.launches import Launch, load_settings, read_launch_history
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import queued_jobs


def feed(
    launch: Launch, commands: SlurmCommands, context: Context
) -> tuple[dict[int, str], tuple[str, ...], tuple[JobSpec, ...]]:
    """Submit the waiting jobs that fit; the caller must hold `alone`. Raises SchedulerError.

    Returns the Slurm job of each run that was submitted, the main jobs, and what did not fit.
    """
    reconcile(launch, commands, context)
    history = read_launch_history(launch)
    waiting = history.waiting()
    if not waiting or launch.cluster.kind is not ClusterKind.slurm:
        return {}, (), ()
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
    return jobs, tuple(submission.accepted.values()), read_launch_history(launch).waiting()


def is_chained(launch: Launch) -> bool:
    """Whether arrays run one after the other, so that one limit holds for all of them."""
    firsts = [stage.first for stage in launch.stages] or [0]
    return any(throttle(load_settings(launch, first)[0]) is not None for first in firsts)


def _latest(history: LaunchHistory, commands: SlurmCommands) -> str | None:
    """Return the job of the launch that was submitted last, if it is still queued."""
    living = queued_jobs(commands)
    return next((main for main in main_jobs_of(history)[-1:] if main in living), None)
