"""The failure of an attempt whose supervisor could not record the end.

It is derived from the attempt's own events alone. Slurm may know better, see
planning/recovery/budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.states import RoundAction


def missing_final_event(history: Iterable[events.Event]) -> Failure | None:
    """Return the failure of the latest attempt in these events if it lacks a final event.

    The cause is that of the notice it received, otherwise `launcher_lost`. None if it has a final
    event, or never began. This function cannot tell whether the attempt is still alive.
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
    """Return the number of the latest round in these events, or 0."""
    return max(
        (event.round for event in history if isinstance(event, events.RoundStarted)), default=0
    )


def lost(cause: Cause) -> Failure:
    """Return the failure of an attempt whose supervisor was lost for this cause."""
    message = "the supervisor died before recording the outcome"
    return Failure(cause=cause, message=message, signature=cause)
