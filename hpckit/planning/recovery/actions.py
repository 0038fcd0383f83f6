"""What can follow a round, and the records of it. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from hpckit.model import events
from hpckit.model.failure import Failure
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.recovery.round_view import RoundView
from hpckit.values import dataclass

NOTICE_CODE = 143
"""Exit code of an attempt that was asked to stop: 128 + SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRound:
    """Start all ranks again on these nodes, inside the same attempt, after a pause.

    `undone` is whether the run gives up growing, as its larger round failed at once.
    """

    because: Failure
    nodes: tuple[str, ...]
    pause: timedelta = timedelta()
    undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    """End the attempt in this state, with this exit code.

    `again` asks for a new attempt, without the nodes `excluded`. `reason` says why a run completed
    early.
    """

    state: RunState
    exit_code: int
    failure: Failure | None = None
    reason: str = ""
    again: bool = False
    excluded: tuple[str, ...] = ()


Action = NewRound | EndAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Let the round continue although a node of it is being drained; `because` is the reason."""

    because: str


def round_ended(view: RoundView, failure: Failure | None, action: RoundAction) -> events.RoundEnded:
    """Return the record of an ended round."""
    return events.RoundEnded(
        at=view.at,
        round=view.round,
        first_step=view.first_step,
        step=view.step,
        action=action,
        failure=failure,
        silent_s=round(view.silent.total_seconds(), 3),
    )


def round_followed(view: RoundView, action: Action) -> events.RoundEnded:
    """Return the record of an ended round that this action follows."""
    if isinstance(action, NewRound):
        return round_ended(view, action.because, RoundAction.new_round)
    word = RoundAction.new_attempt if action.again else RoundAction.end
    completed = action.state is RunState.completed
    return round_ended(view, action.failure, RoundAction.completed if completed else word)


def attempt_ended(end: EndAttempt, at: datetime) -> events.AttemptEnded:
    """Return the final event of an attempt."""
    return events.AttemptEnded(
        at=at,
        state=end.state,
        exit_code=end.exit_code,
        failure=end.failure,
        reason=end.reason,
    )


def new_attempt(failure: Failure, exit_code: int, excluded: frozenset[str]) -> EndAttempt:
    """Return the end of an attempt that asks for another one."""
    return EndAttempt(
        state=RunState.interrupted,
        exit_code=exit_code,
        failure=failure,
        again=True,
        excluded=tuple(sorted(excluded)),
    )
