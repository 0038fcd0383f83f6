"""The events of a run's attempts that count against its budgets.

Attempts before the user started the run again by hand are left out. Attempts that ended without
writing a final event get one. planning.ledger does the counting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.model import events
from hpckit.model.history import LaunchHistory
from hpckit.model.run import last_round, missing_final_event, round_lost
from hpckit.model.states import RunState
from hpckit.record.attempts import progress_of, read_attempts
from hpckit.record.launches import Launch, read_launch_history
from hpckit.record.layout import AttemptPaths


def counted_events(
    launch: Launch, index: int, *, before: int | None = None, history: LaunchHistory | None = None
) -> tuple[events.Event, ...]:
    """Return the events of a run's attempts that count, oldest first, for planning.ledger.

    With `before`, these are the attempts before that one, all of which are over. Without it, all
    attempts, and the latest may still be running. An attempt that is over without a final event
    gets one, at the latest step it recorded: with the cause of the last notice it received, else
    that its supervisor was lost.
    """
    known = read_launch_history(launch) if history is None else history
    first = known.fresh.get(index, 0) + 1
    attempts = [
        (number, told)
        for number, told in read_attempts(launch.paths.run(index))
        if number >= first and (before is None or number < before)
    ]
    last = attempts[-1][0] if attempts and before is None else None
    found: list[events.Event] = []
    for number, told in attempts:
        found += told
        if number != last:
            found += _final_event(told, launch.paths.run(index).attempt(number))
    return tuple(found)


def _final_event(told: Sequence[events.Event], attempt: AttemptPaths) -> Iterator[events.Event]:
    """Yield the end of an attempt that began but has none."""
    failure = missing_final_event(told)
    if failure is None:
        return
    at = told[-1].at
    yield round_lost(failure, at=at, number=last_round(told), step=progress_of(attempt)[0])
    yield events.AttemptEnded(at=at, state=RunState.interrupted, exit_code=1, failure=failure)
