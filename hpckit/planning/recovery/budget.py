"""Whether a run that has ended may be started again automatically. Pure.

Combines the run's own record and Slurm's report of its end into one ledger, and explains why a budget is used
up. It must count exactly as the supervisor does (planning.recovery.ledger, planning.recovery.decide).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Recovery
from hpckit.model.run import (
    CAUSES_SAID_BY_SLURM,
    RunRecord,
    RunView,
    build_end_event_of_lost_round,
    failure_of_unended_attempt,
    supervisor_lost_failure,
)
from hpckit.model.states import RunState
from hpckit.planning.recovery.ledger import Ledger, build_ledger_from_events, explain_exhausted_restart_budget

_NEVER_BEGAN = "never began"
_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


def explain_no_automatic_restart(
    view: RunView, history: Sequence[events.Event], policy: Recovery, *, idle: int = 0
) -> str | None:
    """Return why a run that has ended is not started again automatically; None if it is.

    `history` are the events of the attempts that count, oldest first. Before its present job,
    `idle` jobs ended without having begun an attempt.
    """
    if view.state is RunState.cancelled:
        # A cancelled run is started again only on request, each time.
        return None
    ledger, failure = build_ledger_of_ended_run(view, history, idle=idle)
    why = explain_exhausted_restart_budget(ledger, failure, policy)
    return why or (None if why is None else f"no restart after {failure.cause}, by its recovery")


def build_ledger_of_ended_run(
    view: RunView, history: Sequence[events.Event], *, idle: int = 0
) -> tuple[Ledger, Failure]:
    """Return the ledger of an ended run, and its latest failure, which the ledger includes."""
    record, ledger = view.record, build_ledger_from_events(history)
    missing = failure_of_unended_attempt(history)
    if not record.has_attempt_begun:
        if missing is not None:
            ledger = _add_failure_to_ledger(ledger, record, missing, record.attempt)
        failure = record.failure or _build_never_began_failure(view)
        for _ in range(idle + 1):
            ledger = _add_failure_to_ledger(ledger, record, failure, record.attempt + 1)
        return ledger, failure
    if record.failure is None or not record.state.ended:
        own = Cause.launcher_lost if missing is None else missing.cause
        failure = supervisor_lost_failure(_find_failure_cause_from_slurm(view) or own)
        return _add_failure_to_ledger(ledger, record, failure, record.attempt), failure
    latest = ledger.entries[-1] if ledger.entries else None
    if latest is None or (latest.attempt, latest.cause) != (record.attempt, record.failure.cause):
        ledger = _add_failure_to_ledger(ledger, record, record.failure, record.attempt)
    return ledger, record.failure


def _find_failure_cause_from_slurm(view: RunView) -> Cause | None:
    seen = view.observation
    return None if seen is None else CAUSES_SAID_BY_SLURM.get(seen.state.base)


def _build_never_began_failure(view: RunView) -> Failure:
    cause = _find_failure_cause_from_slurm(view) or Cause.launcher_lost
    return Failure(cause=cause, message="its job ended before it began", signature=_NEVER_BEGAN)


def _add_failure_to_ledger(ledger: Ledger, record: RunRecord, failure: Failure, attempt: int) -> Ledger:
    at = ledger.entries[-1].at if ledger.entries else record.started_at or _BEFORE_ALL
    ended = build_end_event_of_lost_round(
        failure, at=record.ended_at or at, number=record.round or 0, step=record.step
    )
    return ledger.after_round(ended, attempt)
