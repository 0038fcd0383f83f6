"""What a notice is due for: decided from the record, so that whoever looks decides alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.outside.notices import NoticeKind
from hpckit.model.run import RunView
from hpckit.model.states import RoundAction, RunState

_LEFT = frozenset({RunState.failed, RunState.interrupted, RunState.unknown})
"""States in which a run is told of as failed once nothing continues it."""


def kind_of_end(state: RunState, *, continues: bool) -> NoticeKind | None:
    """Return what the end of an attempt is told as; `continues` is whether another one follows."""
    if state is RunState.completed:
        return NoticeKind.completed
    if state is RunState.failed:
        return NoticeKind.failed
    if state is RunState.interrupted and not continues:
        return NoticeKind.failed
    return None


def kind_of_rest(state: RunState) -> NoticeKind | None:
    """Return what a run is told as when nothing continues any run of its launch."""
    if state is RunState.completed:
        return NoticeKind.completed
    return NoticeKind.failed if state in _LEFT else None


def kinds_of_event(event: events.Event, attempt: int) -> tuple[NoticeKind, ...]:
    """Return what an event of a running attempt is told as."""
    match event:
        case events.RoundStarted() if attempt > 1 or event.round:
            return (NoticeKind.resumed,)
        case events.RoundEnded(failure=Failure(cause=Cause.hang)):
            return (NoticeKind.stalled,)
        case _:
            return ()


def wanted_again(told: Iterable[events.Event]) -> bool:
    """Return whether the supervisor of an attempt decided that a new attempt should follow.

    A supervisor that is cut off loses all other nodes: it decides so, but cannot reach Slurm.
    """
    rounds = [event for event in told if isinstance(event, events.RoundEnded)]
    return bool(rounds) and rounds[-1].action is RoundAction.new_attempt


def is_over(view: RunView, *, continues: bool) -> bool:
    """Return whether a run is over, by the record alone; `continues` as in `kind_of_end`."""
    record = view.record
    if record.cancel_requested and not record.begun:
        return True
    return view.state.is_final or (view.state is RunState.interrupted and not continues)
