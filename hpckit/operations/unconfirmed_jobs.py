"""Settles submissions of unknown outcome: finds the job by name, then adopts, cancels or closes it.

An intent was recorded, but neither acceptance nor refusal: a crash, a lost connection, or an sbatch
that did not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from enum import StrEnum

from hpckit.context import Context
from hpckit.model.events import CancelRequested
from hpckit.model.plan import JobSpec
from hpckit.operations.submit import submission_outcome, time_left
from hpckit.record.launch_events import record_event
from hpckit.record.launches import Launch
from hpckit.slurm.cancel import cancel
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import find_by_name
from hpckit.values import dataclass
from hpckit.views.launch_view import unconfirmed


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


def find_unconfirmed(launches: Iterable[Launch], context: Context) -> Iterator[UnconfirmedJob]:
    """Yield the unconfirmed jobs of launches; raises SchedulerError."""
    for launch in launches:
        for job in unconfirmed(launch):
            jobs = find_by_name(job.name, _commands(launch, context))
            yield UnconfirmedJob(launch=launch, job=job, jobs=jobs)


def settle(found: UnconfirmedJob, context: Context, *, adopt: bool) -> SettledAs:
    """Adopt the jobs that Slurm has, or cancel them; raises SchedulerError.

    What may still be being submitted, and Slurm does not have yet, is left alone.
    """
    paths = found.launch.paths
    left = time_left(found.launch, found.job, context.now())
    if not found.jobs and left != timedelta():
        soon = "soon" if left is None else f"in {left.total_seconds():.0f} s"
        context.note(f"{found.job.name} may be being submitted just now: ask again {soon}")
        return SettledAs.untouched
    if found.jobs and not adopt:
        record_event(paths, CancelRequested(at=context.now(), runs=found.job.runs))
        cancel(found.jobs, _commands(found.launch, context))
    record_event(paths, submission_outcome(found.job, found.jobs, context.now()))
    if not found.jobs:
        return SettledAs.closed
    return SettledAs.adopted if adopt else SettledAs.cancelled


def _commands(launch: Launch, context: Context) -> SlurmCommands:
    return SlurmCommands(bin_dir=launch.cluster.bin_dir, environ=context.environ)
