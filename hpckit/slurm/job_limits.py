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
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hpckit.errors import SchedulerError
from hpckit.model.cluster.allocation import AllocationEnding, AttemptLimits
from hpckit.model.cluster.preemption import (
    BY_PARTITION,
    BY_QOS,
    Preemption,
    PreemptMode,
    resolve_job_preemption,
    slurm_restarts_preempted_job,
)
from hpckit.model.failure import Cause
from hpckit.model.run import Observation
from hpckit.model.states import BaseState, StateFlag
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import JobTerms, parse_slurm_time
from hpckit.slurm.query import (
    ask_controller_settings,
    ask_job_terms,
    ask_scontrol_settings,
    observe_queued_job,
)
from hpckit.slurm.site_parse import QOS_PREEMPTION, parse_qos_preemption, parse_seconds
from hpckit.values import dataclass, field, replace

T = TypeVar("T")

_AT_ONCE = timedelta(seconds=1)
"""Slurm notes the moments of a preempted job's end one after the other, in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits(AttemptLimits):
    """When and how a job ends."""

    preempt_mode: PreemptMode = PreemptMode.unknown


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

    def ask_limits(self) -> JobLimits | None:
        """Return the current limits; None if there is no answer.

        In the first call, the usual values replace missing answers.
        """
        if self._known is None:
            self._known = ask_job_limits(self.commands, self.job, self.environ)
            return self._known
        try:
            found = ask_job_terms(self.job, self.commands)
            _, clock = ask_controller_settings(self.commands)
        except SchedulerError:
            return None
        if found is None or clock is None:
            return None
        self._known = replace(self._known, end_s=_to_monotonic_time(found.end_at, clock))
        return self._known


def ask_job_limits(commands: SlurmCommands, job: str, environ: Mapping[str, str]) -> JobLimits:
    """Return the limits of a job with at most three queries; four if QOS preempt jobs."""
    end_at, partition = _find_job_end_and_partition(commands, job, environ)
    nothing: tuple[dict[str, str], datetime | None] = ({}, None)
    config, clock = _ask_or_default(lambda: ask_controller_settings(commands), nothing)
    end_s = _read_job_end_from_environment(environ) if clock is None else _to_monotonic_time(end_at, clock)
    plugin = config.get("PreemptType", "")
    preemption = resolve_job_preemption(
        plugin,
        PreemptMode.parse(config.get("PreemptMode", "")),
        _ask_partition_preemption(commands, partition) if plugin == BY_PARTITION and partition else None,
        _ask_qos_preemption(commands, job, environ) if plugin == BY_QOS else None,
    )
    return JobLimits(
        end_s=end_s,
        kill_wait=parse_seconds(config.get("KillWait", "")) or AttemptLimits().kill_wait,
        grace=preemption.grace,
        preempt_mode=preemption.mode,
    )


def _ask_partition_preemption(commands: SlurmCommands, name: str) -> Preemption:
    own = _ask_or_default(lambda: ask_scontrol_settings(commands, "partition", name), dict[str, str]())
    mode = PreemptMode.parse(own.get("PreemptMode", ""))
    return Preemption(mode=mode, grace=parse_seconds(own.get("GraceTime", "")))


def _ask_qos_preemption(commands: SlurmCommands, job: str, environ: Mapping[str, str]) -> Preemption | None:
    """Return what is set for the job's QOS; None without an accounting that answers."""
    name = environ.get("SLURM_JOB_QOS", "")
    if not name:
        found = _ask_terms_or_none(commands, job)
        name = "" if found is None else found.qos
    answer = _ask_or_default(lambda: commands.run(*QOS_PREEMPTION), "")
    return parse_qos_preemption(answer).get(name)


def _to_monotonic_time(end_at: datetime | None, clock: datetime) -> float | None:
    """Convert a moment of the controller, whose clock shows `clock` now, to monotonic seconds."""
    return None if end_at is None else time.monotonic() + (end_at - clock).total_seconds()


def _read_job_end_from_environment(environ: Mapping[str, str]) -> float | None:
    """Return the end as if the job began with this process, which is true except for its prolog."""
    begin = parse_slurm_time(environ.get("SLURM_JOB_START_TIME", ""))
    end = parse_slurm_time(environ.get("SLURM_JOB_END_TIME", ""))
    return None if begin is None or end is None else _to_monotonic_time(end, begin)


def _find_job_end_and_partition(
    commands: SlurmCommands, job: str, environ: Mapping[str, str]
) -> tuple[datetime | None, str]:
    """Return both, without a query if the environment has them."""
    end_at = parse_slurm_time(environ.get("SLURM_JOB_END_TIME", ""))
    partition = environ.get("SLURM_JOB_PARTITION", "")
    if end_at is not None and partition:
        return end_at, partition
    found = _ask_terms_or_none(commands, job)
    if found is None:
        return end_at, partition
    return end_at or found.end_at, partition or found.partition


def ask_why_job_ends(
    commands: SlurmCommands, job: str, restart_count: int, mode: PreemptMode = PreemptMode.unknown
) -> AllocationEnding:
    """Return why a job with this restart count is being ended, with two queries.

    `mode` is how Slurm preempts it.
    """
    seen = _ask_or_default(lambda: observe_queued_job(job, commands, datetime.now(UTC)), None)
    found = _ask_terms_or_none(commands, job)  # later, as it tells more of an end that has just begun
    in_grace = seen is not None and seen.restarts == restart_count
    if found is not None and _was_job_preempted(found, seen if in_grace else None):
        restarts = slurm_restarts_preempted_job(mode, requeueable=found.requeueable)
        return AllocationEnding(cause=Cause.preempted, restarts=restarts)
    told = AllocationEnding() if seen is None else _classify_ending(seen, restart_count)
    return AllocationEnding() if told.runs_on and found is None else told


def _was_job_preempted(found: JobTerms, seen: Observation | None) -> bool:
    """Whether preemption ends the job, and not its user within the grace.

    `seen` is None if this attempt of the job has ended. Measured with 22.05: Slurm sets PreemptTime
    when the grace begins, and again when it ends the job; squeue shows COMPLETING for both ends.
    """
    if found.preempted_at is None:
        return False
    if seen is None or seen.state.base is BaseState.preempted or not _is_completing_or_ended(seen):
        return True
    if seen.state.base is BaseState.cancelled or found.end_at is None:
        return False
    return abs(found.end_at - found.preempted_at) <= _AT_ONCE


def _is_completing_or_ended(seen: Observation) -> bool:
    return StateFlag.completing in seen.state.flags or seen.state.ended


def is_job_preempted(commands: SlurmCommands, seen: Observation) -> bool:
    """Return whether preemption ends this job, which is completing; raises as `terms`."""
    found = ask_job_terms(seen.job, commands)
    return found is not None and _was_job_preempted(found, seen)


def _classify_ending(seen: Observation, restart_count: int) -> AllocationEnding:
    """Return what squeue tells: a job that goes on was only signalled, as by `scancel --signal`."""
    if seen.restarts > restart_count or seen.state.base is BaseState.pending:
        return AllocationEnding(cause=Cause.notice)  # requeued, by a user or after a lost node
    if seen.reason == "TimeLimit":
        return AllocationEnding(cause=Cause.time_limit)
    if _is_completing_or_ended(seen):  # with a reason after a failure
        return AllocationEnding(cancelled=not seen.reason)
    return AllocationEnding(runs_on=seen.state.base is BaseState.running)


def _ask_or_default(ask: Callable[[], T], default: T) -> T:
    try:
        return ask()
    except SchedulerError:
        return default


def _ask_terms_or_none(commands: SlurmCommands, job: str) -> JobTerms | None:
    return _ask_or_default(lambda: ask_job_terms(job, commands), None)
