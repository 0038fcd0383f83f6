"""How long a job has, how it will be ended, and why it is being ended.

This covers the time limit, KillWait, preemption, and the cause of a signal. What cannot be
determined is left open, or is Slurm's own default: never an error. There are a few queries per
attempt, and two every few minutes, so that slurmctld does not notice.

The time left is the end of the job minus the controller's own clock, both from its answer. squeue's
TimeLeft (%L) and scontrol's RunTime use the clock of the node that asks (measured with 22.05: four
minutes less if it is four minutes ahead).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from hpckit.errors import SchedulerError
from hpckit.model.cluster import allocation
from hpckit.model.cluster.preemption import (
    BY_PARTITION,
    BY_QOS,
    Preemption,
    PreemptMode,
    preemption_of_job,
    restarts_preempted,
)
from hpckit.model.failure import Cause
from hpckit.model.run import Observation
from hpckit.model.states import BaseState, StateFlag
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import JobTerms, parse_time
from hpckit.slurm.query import controller, observe_queued, settings, terms
from hpckit.slurm.site_parse import QOS_PREEMPTION, read_qos_preemption
from hpckit.values import dataclass, field, replace

KILL_WAIT = timedelta(seconds=30)
"""Slurm's default between SIGTERM and SIGKILL."""

_AT_ONCE = timedelta(seconds=1)
"""Slurm notes the moments of a preempted job's end one after the other, in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """When and how a job ends.

    `end_s` is when it ends, in seconds of this host's monotonic clock; None if it has no time limit
    or none that is known. `kill_wait` is the time between SIGTERM and SIGKILL. A preempted job runs
    for `grace` before that; None if it is not known.
    """

    end_s: float | None = None
    kill_wait: timedelta = KILL_WAIT
    grace: timedelta | None = None
    preempt_mode: PreemptMode = PreemptMode.unknown

    def told(self) -> allocation.AttemptLimits:
        """Return the limits in the form that the supervisor uses."""
        return allocation.AttemptLimits(
            end_s=self.end_s, kill_wait=self.kill_wait, grace=self.grace
        )


@dataclass(slots=True, kw_only=True)
class LimitsOfJob:
    """The limits of a job (`123` or `123_4`), for repeated queries.

    `environ` is the batch script's: since 23.02 it has the job's begin and end.
    """

    commands: SlurmCommands
    job: str
    environ: Mapping[str, str]
    _known: JobLimits | None = field(default=None, init=False)

    @property
    def preempt_mode(self) -> PreemptMode:
        """How the job would be preempted, by the first answer."""
        return PreemptMode.unknown if self._known is None else self._known.preempt_mode

    def ask(self) -> JobLimits | None:
        """Return the current limits; None if there is no answer.

        In the first call, the usual values replace missing answers.
        """
        if self._known is None:
            self._known = job_limits(self.commands, self.job, self.environ)
            return self._known
        try:
            found = terms(self.job, self.commands)
            _, clock = controller(self.commands)
        except SchedulerError:
            return None
        if found is None or clock is None:
            return None
        self._known = replace(self._known, end_s=_by_our_clock(found.end_at, clock))
        return self._known


def job_limits(commands: SlurmCommands, job: str, environ: Mapping[str, str]) -> JobLimits:
    """Return the limits of a job with at most three queries; four if QOS preempt jobs."""
    end_at, partition = _end_and_partition(commands, job, environ)
    config, clock = _controller(commands)
    end_s = _by_environment(environ) if clock is None else _by_our_clock(end_at, clock)
    plugin = config.get("PreemptType", "")
    preemption = preemption_of_job(
        plugin,
        PreemptMode.parse(config.get("PreemptMode", "")),
        _of_partition(commands, partition) if plugin == BY_PARTITION and partition else None,
        _of_qos(commands, job, environ) if plugin == BY_QOS else None,
    )
    return JobLimits(
        end_s=end_s,
        kill_wait=_seconds(config.get("KillWait")) or KILL_WAIT,
        grace=preemption.grace,
        preempt_mode=preemption.mode,
    )


def _of_partition(commands: SlurmCommands, name: str) -> Preemption:
    own = _settings(commands, "partition", name)
    mode = PreemptMode.parse(own.get("PreemptMode", ""))
    return Preemption(mode=mode, grace=_seconds(own.get("GraceTime")))


def _of_qos(commands: SlurmCommands, job: str, environ: Mapping[str, str]) -> Preemption | None:
    """Return what is set for the job's QOS; None without an accounting that answers."""
    name = environ.get("SLURM_JOB_QOS", "")
    if not name:
        found = _terms(commands, job)
        name = "" if found is None else found.qos
    try:
        return read_qos_preemption(commands.run(*QOS_PREEMPTION)).get(name)
    except SchedulerError:
        return None


def _by_our_clock(end_at: datetime | None, clock: datetime) -> float | None:
    """Convert a moment of the controller, whose clock shows `clock` now, to monotonic seconds."""
    return None if end_at is None else time.monotonic() + (end_at - clock).total_seconds()


def _by_environment(environ: Mapping[str, str]) -> float | None:
    """Return the end as if the job began with this process, which is true except for its prolog."""
    begin = parse_time(environ.get("SLURM_JOB_START_TIME", ""))
    end = parse_time(environ.get("SLURM_JOB_END_TIME", ""))
    return None if begin is None or end is None else _by_our_clock(end, begin)


def _end_and_partition(
    commands: SlurmCommands, job: str, environ: Mapping[str, str]
) -> tuple[datetime | None, str]:
    """Return both, without a query if the environment has them."""
    end_at = parse_time(environ.get("SLURM_JOB_END_TIME", ""))
    partition = environ.get("SLURM_JOB_PARTITION", "")
    if end_at is not None and partition:
        return end_at, partition
    found = _terms(commands, job)
    if found is None:
        return end_at, partition
    return end_at or found.end_at, partition or found.partition


class EndCause(StrEnum):
    """Why a running job got a signal, as far as Slurm reports it.

    `requeued`: by a user or after a lost node; `none`: the job continues, as with `scancel
    --signal`; `unknown`: Slurm did not answer.
    """

    preempted = "preempted"
    time_limit = "time_limit"
    requeued = "requeued"
    cancelled = "cancelled"
    failed = "failed"
    none = "none"
    unknown = "unknown"


_CAUSES = {
    EndCause.preempted: Cause.preempted,
    EndCause.time_limit: Cause.time_limit,
    EndCause.requeued: Cause.notice,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnding:
    """Why a job is being ended, and when it will end, if Slurm has set that.

    `requeueable` is whether Slurm may start the job again.
    """

    cause: EndCause = EndCause.unknown
    end_at: datetime | None = None
    requeueable: bool = True

    def told(self, mode: PreemptMode) -> allocation.AllocationEnding:
        """Return the ending in the form that the supervisor uses; `mode` is how Slurm preempts."""
        preempted = self.cause is EndCause.preempted
        restarts = restarts_preempted(mode, requeueable=self.requeueable)
        return allocation.AllocationEnding(
            cause=_CAUSES.get(self.cause),
            cancelled=self.cause is EndCause.cancelled,
            runs_on=self.cause is EndCause.none,
            restarts=not preempted or restarts,
        )


def ending(commands: SlurmCommands, job: str, restart_count: int) -> JobEnding:
    """Return why a job with this restart count is being ended, with two queries."""
    try:
        seen = observe_queued(job, commands, datetime.now(UTC))
    except SchedulerError:
        seen = None
    found = _terms(commands, job)  # later, as it tells more of an end that has just begun
    in_grace = seen is not None and seen.restarts == restart_count
    if found is not None and _was_preempted(found, seen if in_grace else None):
        # After the preempted attempt has ended, Slurm shows the next attempt's end, or none.
        return JobEnding(
            cause=EndCause.preempted,
            end_at=found.end_at if in_grace else None,
            requeueable=found.requeueable,
        )
    cause = _cause(seen, restart_count)
    return JobEnding(cause=EndCause.unknown if cause is EndCause.none and found is None else cause)


def _was_preempted(found: JobTerms, seen: Observation | None) -> bool:
    """Whether preemption ends the job, and not its user within the grace.

    `seen` is None if this attempt of the job has ended. Measured with 22.05: Slurm sets PreemptTime
    when the grace begins, and again when it ends the job; squeue shows COMPLETING for both ends.
    """
    if found.preempted_at is None:
        return False
    if seen is None or seen.state.base is BaseState.preempted or not _leaves(seen):
        return True
    if seen.state.base is BaseState.cancelled or found.end_at is None:
        return False
    return abs(found.end_at - found.preempted_at) <= _AT_ONCE


def _leaves(seen: Observation) -> bool:
    return StateFlag.completing in seen.state.flags or seen.state.ended


def is_preempted(commands: SlurmCommands, seen: Observation) -> bool:
    """Return whether preemption ends this job, which is completing; raises as `terms`."""
    found = terms(seen.job, commands)
    return found is not None and _was_preempted(found, seen)


def _cause(seen: Observation | None, restart_count: int) -> EndCause:
    if seen is None:
        return EndCause.unknown
    if seen.restarts > restart_count or seen.state.base is BaseState.pending:
        return EndCause.requeued
    if seen.reason == "TimeLimit":
        return EndCause.time_limit
    if _leaves(seen):
        return EndCause.failed if seen.reason else EndCause.cancelled
    return EndCause.none if seen.state.base is BaseState.running else EndCause.unknown


def _terms(commands: SlurmCommands, job: str) -> JobTerms | None:
    try:
        return terms(job, commands)
    except SchedulerError:
        return None


def _controller(commands: SlurmCommands) -> tuple[dict[str, str], datetime | None]:
    try:
        return controller(commands)
    except SchedulerError:
        return {}, None


def _settings(commands: SlurmCommands, *what: str) -> dict[str, str]:
    try:
        return settings(commands, *what)
    except SchedulerError:
        return {}


def _seconds(text: str | None) -> timedelta | None:
    return timedelta(seconds=int(text)) if text and text.isdecimal() else None
