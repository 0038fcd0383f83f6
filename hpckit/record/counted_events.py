"""The events of a run's attempts that count against its budgets.

Attempts before the user started the run again by hand are left out. Attempts that ended without
writing a final event get one. planning.ledger does the counting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.model import events
from hpckit.model.history import LaunchHistory
from hpckit.model.run import build_end_event_of_lost_round, failure_of_unended_attempt, last_round_number
from hpckit.model.states import RunState
from hpckit.record.attempts import read_events_by_attempt, read_step_and_total_steps
from hpckit.record.launches import Launch, read_launch_history
from hpckit.record.layout import AttemptPaths


def read_events_for_restart_budget(
    launch: Launch, index: int, *, before: int | None = None, history: LaunchHistory | None = None
) -> tuple[events.Event, ...]:
    """Return the events of a run's attempts that count, oldest first, for planning.ledger.

    With `before`, these are the attempts before that one, all of which are over. Without it, all attempts,
    and the latest may still be running. An attempt that is over without a final event gets one, at the latest
    step it recorded: with the cause of the last notice it received, else that its supervisor was lost.
    """
    known = read_launch_history(launch) if history is None else history
    first = known.fresh.get(index, 0) + 1
    attempts = [
        (number, told)
        for number, told in read_events_by_attempt(launch.paths.run(index))
        if number >= first and (before is None or number < before)
    ]
    last = attempts[-1][0] if attempts and before is None else None
    found: list[events.Event] = []
    for number, told in attempts:
        found += told
        if number != last:
            found += _infer_missing_end_events(told, launch.paths.run(index).attempt(number))
    return tuple(found)


def _infer_missing_end_events(told: Sequence[events.Event], attempt: AttemptPaths) -> Iterator[events.Event]:
    failure = failure_of_unended_attempt(told)
    if failure is None:
        return
    at = told[-1].at
    yield build_end_event_of_lost_round(
        failure, at=at, number=last_round_number(told), step=read_step_and_total_steps(attempt)[0]
    )
    yield events.AttemptEnded(at=at, state=RunState.interrupted, exit_code=1, failure=failure)
