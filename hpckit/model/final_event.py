"""How an attempt ended that could not say so itself.

It tells from an attempt's own events that its final event is missing, and what to put
in its place; it must not ask anybody else (Slurm may know better, see planning/spent).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.states import RoundAction


def missing_final_event(history: Iterable[events.Event]) -> Failure | None:
    """Return what the latest attempt in these events ended with: what it was told, or was lost to.

    None where it has a final event of its own, or never began. While it may be alive, it is not for
    this to say.
    """
    cause: Cause | None = None
    for event in history:
        match event:
            case events.AttemptStarted():
                cause = Cause.launcher_lost
            case events.NoticeHeard() if cause is not None:
                cause = event.cause
            case events.AttemptEnded():
                cause = None
            case _:
                pass
    return None if cause is None else lost(cause)


def round_lost(
    failure: Failure, *, at: datetime, number: int, step: int | None
) -> events.RoundEnded:
    """Return the end of a round whose supervisor was lost before it recorded one."""
    return events.RoundEnded(
        at=at, round=number, first_step=None, step=step, action=RoundAction.end, failure=failure
    )


def last_round(history: Iterable[events.Event]) -> int:
    """Return the number of the latest round in these events, 0 without one."""
    return max(
        (event.round for event in history if isinstance(event, events.RoundStarted)), default=0
    )


def lost(cause: Cause) -> Failure:
    """Return the failure of an attempt whose supervisor was lost to this."""
    message = "the supervisor died before recording the outcome"
    return Failure(cause=cause, message=message, signature=cause)
