"""The limits of a cluster for a launch, and which jobs fit into the queue now."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.context import login_name
from hpckit.model.cluster.site import SubmitLimits
from hpckit.model.plan import JobSpec, ResourceSpec
from hpckit.planning.jobs.shared_jobs import BACKLOG_JOBS
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import count_queued_jobs
from hpckit.slurm.site_query import Heard, ask_submit_limits


def ask_limits_for_jobs(
    asked: ResourceSpec, commands: SlurmCommands, heard: Heard | None = None
) -> SubmitLimits:
    """Return the limits of the cluster for such jobs, as far as known; reuse cached answers."""
    whose = login_name()
    return ask_submit_limits(commands, asked.account, asked.partition, asked.qos, whose, heard)


def select_jobs_within_limits(
    jobs: Sequence[JobSpec], limits: SubmitLimits, queued: int
) -> tuple[JobSpec, ...]:
    """Return the first jobs that may be queued in addition to the `queued` ones.

    Leaves room for the backlog job if not all of them fit.
    """
    if limits.queued is None:
        return tuple(jobs)
    elements = sum(job.array_element_count for job in jobs)
    room = limits.queued - queued
    if elements > room:
        room -= BACKLOG_JOBS
    taken: list[JobSpec] = []
    for job in jobs:
        room -= job.array_element_count
        if room < 0:
            break
        taken.append(job)
    return tuple(taken)


def ask_which_jobs_fit_queue(
    jobs: Sequence[JobSpec], commands: SlurmCommands, heard: Heard | None = None
) -> tuple[JobSpec, ...]:
    """Return the first jobs that may be queued now."""
    limits = ask_limits_for_jobs(jobs[0].resources, commands, heard)
    return select_jobs_within_limits(
        jobs, limits, 0 if limits.queued is None else count_queued_jobs(commands)
    )
