"""What a cluster takes of a launch: its limits, and which jobs fit into the queue now."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.context import login_name
from hpckit.model.cluster.limits import SubmitLimits
from hpckit.model.plan import JobSpec, ResourceSpec
from hpckit.planning.jobs.arrays import BACKLOG_JOBS
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import count_queued
from hpckit.slurm.site_query import Heard, query_submit_limits


def limits_for(
    asked: ResourceSpec, commands: SlurmCommands, heard: Heard | None = None
) -> SubmitLimits:
    """Return what the cluster accepts of such jobs, as far as it says, or has said already."""
    whose = login_name()
    return query_submit_limits(commands, asked.account, asked.partition, asked.qos, whose, heard)


def fitting(jobs: Sequence[JobSpec], limits: SubmitLimits, queued: int) -> tuple[JobSpec, ...]:
    """Return those of the jobs, from the first, that may be queued beside `queued` others.

    Room is left for the backlog job where not all of them may.
    """
    if limits.queued is None:
        return tuple(jobs)
    elements = sum(job.elements for job in jobs)
    room = limits.queued - queued
    if elements > room:
        room -= BACKLOG_JOBS
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
