"""Whether a run that has ended may be started again automatically. Pure.

Combines the run's own record and Slurm's report of its end into one ledger, and explains why a
budget is used up. It must count exactly as the supervisor does (planning.recovery.ledger,
planning.recovery.limits).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Recovery
from hpckit.model.run import RunRecord, RunView, lost, missing_final_event, round_lost
from hpckit.model.states import BaseState, RunState
from hpckit.planning.recovery.ledger import Ledger, exhausted, read_ledger

_SAID_BY_SLURM = {
    BaseState.node_fail: Cause.node_lost,
    BaseState.boot_fail: Cause.node_lost,
    BaseState.timeout: Cause.time_limit,
    BaseState.deadline: Cause.time_limit,
    BaseState.preempted: Cause.preempted,
    BaseState.out_of_memory: Cause.host_oom,
    BaseState.cancelled: Cause.notice,
}
"""The causes that Slurm's states stand for if our own record has no final event."""

_NEVER_BEGAN = "never began"
_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


def spent(
    view: RunView, history: Sequence[events.Event], policy: Recovery, *, idle: int = 0
) -> str | None:
    """Return why a run that has ended is not started again automatically; None if it is.

    `history` are the events of the attempts that count, oldest first. Before its present job,
    `idle` jobs ended without having begun an attempt.
    """
    if view.state is RunState.cancelled:
        # A cancelled run is started again only on request, each time.
        return None
    ledger, failure = whole_ledger(view, history, idle=idle)
    why = exhausted(ledger, failure, policy)
    return why or (None if why is None else f"no restart after {failure.cause}, by its recovery")


def whole_ledger(
    view: RunView, history: Sequence[events.Event], *, idle: int = 0
) -> tuple[Ledger, Failure]:
    """Return the ledger of an ended run, and its latest failure, which the ledger includes."""
    record, ledger = view.record, read_ledger(history)
    missing = missing_final_event(history)
    if not record.begun:
        if missing is not None:
            ledger = _with(ledger, record, missing, record.attempt)
        failure = record.failure or _never_began(view)
        for _ in range(idle + 1):
            ledger = _with(ledger, record, failure, record.attempt + 1)
        return ledger, failure
    if record.failure is None or not record.state.ended:
        own = Cause.launcher_lost if missing is None else missing.cause
        failure = lost(_slurm_cause(view) or own)
        return _with(ledger, record, failure, record.attempt), failure
    latest = ledger.entries[-1] if ledger.entries else None
    if latest is None or (latest.attempt, latest.cause) != (record.attempt, record.failure.cause):
        ledger = _with(ledger, record, record.failure, record.attempt)
    return ledger, record.failure


def _slurm_cause(view: RunView) -> Cause | None:
    seen = view.observation
    return None if seen is None else _SAID_BY_SLURM.get(seen.state.base)


def _never_began(view: RunView) -> Failure:
    cause = _slurm_cause(view) or Cause.launcher_lost
    return Failure(cause=cause, message="its job ended before it began", signature=_NEVER_BEGAN)


def _with(ledger: Ledger, record: RunRecord, failure: Failure, attempt: int) -> Ledger:
    at = ledger.entries[-1].at if ledger.entries else record.started_at or _BEFORE_ALL
    ended = round_lost(
        failure, at=record.ended_at or at, number=record.round or 0, step=record.step
    )
    return ledger.after(ended, attempt)
