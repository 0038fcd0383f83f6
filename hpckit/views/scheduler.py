"""Asks a scheduler about the jobs of launches, for views; does not interpret the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.run import Observation
from hpckit.record.launches import Launch, read_launch_events
from hpckit.values import dataclass, field
from hpckit.views.freshness import Freshness, least_age

_TIMEOUT = timedelta(seconds=20)


class Scheduler(StrEnum):
    """The outcome of asking the scheduler. `none`: there was no scheduler or job to ask about."""

    answered = "answered"
    unreachable = "unreachable"
    none = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerReply:
    """One scheduler's report about jobs, and when it was asked; else why it does not answer."""

    scheduler: Scheduler
    observations: Mapping[str, Observation] = field(default_factory=dict)
    warning: str = ""
    asked_at: datetime | None = None


def ask_scheduler(
    launches: Sequence[Launch], jobs: Sequence[str], context: Context, freshness: Freshness | None
) -> SchedulerReply:
    """Return the report of these launches' scheduler about their jobs, with one query for all."""
    # Imported here: only launches on Slurm need them, and `ls` and `status` start faster without.
    from hpckit.slurm import cached_query, commands, query  # noqa: PLC0415

    least = least_age(context)
    try:
        programs = commands.SlurmCommands(
            bin_dir=launches[0].cluster.bin_dir, environ=context.environ, timeout=_TIMEOUT
        )
        if freshness is not None and least:
            # Slurm's answers from before the latest event of a launch are outdated.
            told = (
                history[-1].at for launch in launches if (history := read_launch_events(launch))
            )
            not_before = max(filter(None, (freshness.not_before, *told)), default=None)
            wish = cached_query.AllowedAge(least=least, not_before=not_before, now=freshness.now)
            heard = cached_query.observe_shared(jobs, programs, context.now, wish)
            if heard is not None:
                return SchedulerReply(
                    scheduler=Scheduler.answered,
                    observations=heard.observations,
                    asked_at=heard.asked_at,
                )
        now = context.now()
        observations = query.observe(jobs, programs, now)
    except SchedulerError as error:
        warning = f"{error.message}; this is our own record alone"
        return SchedulerReply(scheduler=Scheduler.unreachable, warning=warning)
    return SchedulerReply(scheduler=Scheduler.answered, observations=observations, asked_at=now)
