"""What the history of a run's metrics promises: read from real folders, as restarts left them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from cli_world import START, Desk, Writer

from hpckit.model import events
from hpckit.model.states import RoundAction
from hpckit.record.launches import Launch
from hpckit.record.store import append_line
from hpckit.views.metric_history import last_live_numbers, last_live_values, metric_history


def log(launch: Launch, attempt: int, **row: Any) -> None:
    """Append a row to an attempt, as rank 0 does."""
    paths = launch.paths.run(0).attempt(attempt)
    append_line(paths.metrics, {"at": (START + timedelta(minutes=attempt)).isoformat(), **row})


def reach(writer: Writer, number: int, step: int) -> None:
    """Begin the first step of a round."""
    writer.tell(events.StepReached(at=START, round=number, step=step))


def live(launch: Launch) -> list[Any]:
    """Return (step, values) of what holds."""
    judged = metric_history(launch, 0)
    return [(one.row.step, dict(one.live())) for one in judged if one.live()]


def test_history_of_a_run_spans_its_attempts(desk: Desk) -> None:
    """What the first attempt did after the checkpoint is undone by the second one."""
    launch = desk.freeze()
    for attempt, steps, first in ((1, range(6), 0), (2, range(4, 6), 4)):
        writer = Writer(launch=launch, attempt=attempt)
        writer.start()
        reach(writer, 0, first)
        for step in steps:
            log(launch, attempt, step=step, round=0, loss=attempt)
    assert live(launch) == [
        *((step, {"loss": 1}) for step in range(4)),
        *((step, {"loss": 2}) for step in (4, 5)),
    ]


def test_rows_without_a_round_belong_to_the_round_of_their_time(desk: Desk) -> None:
    """Rows of an earlier version are told apart by when rounds began."""
    launch = desk.freeze()
    writer = Writer(launch=launch)
    writer.start()
    reach(writer, 0, 0)
    later = START + timedelta(minutes=5)
    for step in range(4):
        log(launch, 1, step=step, loss=0)
    log(launch, 1, step=3, accuracy=0.5)
    writer.tell(
        events.RoundStarted(at=later, round=1, world_size=2, nodes=("n1",)),
        events.RoundEnded(at=later, round=1, first_step=2, step=2, action=RoundAction.new_attempt),
    )
    log(launch, 1, step=2, loss=1, at=(later + timedelta(seconds=1)).isoformat())
    rows = list(metric_history(launch, 0))
    assert [one.row.place for one in rows] == [(1, 0)] * 5 + [(1, 1)]
    assert last_live_values(rows) == {"loss": 1}


def test_damaged_rows_are_left_out(desk: Desk) -> None:
    """Torn lines, rows that are no objects and steps that are no numbers stop no reader."""
    launch = desk.freeze()
    Writer(launch=launch).start()
    lines = [
        '{"step":0,"at":"?","round":"x","loss":1}',
        "[1]",
        '{"step":"a","at":3,"round":0,"note":"b"}',
        '{"step":true,"round":0,"at":"","flag":true}',
        '{"step":2.0,"round":0,"at":"","loss":"nan"}',
        '{"step":3,"lo',
    ]
    launch.paths.run(0).attempt(1).metrics.write_text("\n".join(lines))
    rows = list(metric_history(launch, 0))
    assert [one.row.step for one in rows] == [0, None, None, 2]
    numbers = last_live_numbers(rows)
    assert json.dumps(numbers) == '{"loss": NaN, "flag": 1}'


def test_rows_that_come_during_a_reading_wait_for_the_next_one(desk: Desk) -> None:
    """A run that is training does not confuse who reads it."""
    launch = desk.freeze()
    Writer(launch=launch).start()
    log(launch, 1, step=0, round=0, loss=0)
    reading = metric_history(launch, 0)
    log(launch, 1, step=1, round=0, loss=1, late=1)
    assert [one.row.step for one in reading] == [0]
    assert [step for step, _ in live(launch)] == [0, 1]


def test_run_that_never_began_has_no_history(desk: Desk) -> None:
    """Nothing was logged, and nothing is wrong."""
    assert live(desk.freeze()) == []
