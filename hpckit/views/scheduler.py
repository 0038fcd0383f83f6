"""Asks a scheduler about the jobs of launches, for views; does not interpret the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache

from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.run import Observation
from hpckit.record.launches import Launch, read_launch_events
from hpckit.values import dataclass, field
from hpckit.views.freshness import Freshness, read_max_slurm_cache_age

_TIMEOUT = timedelta(seconds=20)
_Question = tuple[Launch, str, Sequence[str]]
"""A launch, the name of the cluster that has its jobs (empty if unknown), and these jobs."""


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
    questions: Sequence[_Question], context: Context, freshness: Freshness | None
) -> tuple[SchedulerReply, ...]:
    """Return what the scheduler of these launches says about their jobs, with one query for all.

    If this machine's Slurm cannot have a launch's jobs, the reply says why, and nothing else.
    """
    # Imported here: only launches on Slurm need them, and `ls` and `status` start faster without.
    from hpckit.slurm import cached_query, clusters, commands, query  # noqa: PLC0415

    jobs = tuple(dict.fromkeys(job for _, _, some in questions for job in some))
    programs = commands.SlurmCommands(
        bin_dir=questions[0][0].cluster.bin_dir, environ=context.environ, timeout=_TIMEOUT
    )

    def ask() -> SchedulerReply:
        least = read_max_slurm_cache_age(context)
        if freshness is not None and least:
            # Slurm's answers from before the latest event of a launch are outdated.
            events = (read_launch_events(launch) for launch, _, _ in questions)
            told = (history[-1].at for history in events if history)
            not_before = max(filter(None, (freshness.not_before, *told)), default=None)
            wish = cached_query.AllowedAge(least=least, not_before=not_before, now=freshness.now)
            heard = cached_query.observe_jobs_with_cache(jobs, programs, context.now, wish)
            if heard is not None:
                return _build_reply(*heard)
        now = context.now()
        return _build_reply(query.observe_jobs(jobs, programs, now), now)

    @cache
    def ask_config(oldest: timedelta) -> Mapping[str, str]:
        return cached_query.ask_cluster_config(programs, context.now(), oldest)

    def own(cluster: str, some: Sequence[str]) -> SchedulerReply:
        if freshness is not None and all(job in reply.observations for job in some):
            return reply
        why = ""
        # Numbers may have been given since: only an answer to this question knows them all.
        for oldest in (cached_query.CONFIG_AGE, timedelta()):
            why = clusters.explain_why_cluster_lacks_jobs(cluster, some, ask_config(oldest))
            if not why:
                return reply
        return _build_unreachable_reply(why)

    try:
        reply = ask()
    except SchedulerError as error:
        return (_build_unreachable_reply(error.message),) * len(questions)
    return tuple(own(cluster, some) for _, cluster, some in questions)


def _build_reply(seen: Mapping[str, Observation], asked_at: datetime | None) -> SchedulerReply:
    if asked_at is not None:
        return SchedulerReply(scheduler=Scheduler.answered, observations=seen, asked_at=asked_at)
    warning = "Slurm's controller does not answer; this is our own record, and what the accounting knows"
    return SchedulerReply(scheduler=Scheduler.unreachable, observations=seen, warning=warning)


def _build_unreachable_reply(why: str) -> SchedulerReply:
    warning = f"{why}; this is our own record alone"
    return SchedulerReply(scheduler=Scheduler.unreachable, warning=warning)
