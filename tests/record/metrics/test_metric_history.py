"""What the history of a run's metrics promises: read from real folders, as restarts left them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from cli_world import START, Desk, Writer
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.model.states import RoundAction
from hpckit.record.launches import Launch, read_run_records
from hpckit.record.metrics import history
from hpckit.record.metrics.history import (
    last_numbers_not_undone,
    last_values_not_undone,
    read_last_metrics,
    read_metric_history,
)
from hpckit.record.store import append_json_lines


def log(launch: Launch, attempt: int, **row: Any) -> None:
    """Append a row to an attempt, as rank 0 does."""
    paths = launch.paths.run(0).attempt(attempt)
    append_json_lines(paths.metrics, {"at": (START + timedelta(minutes=attempt)).isoformat(), **row})


def reach(writer: Writer, number: int, step: int) -> None:
    """Begin the first step of a round."""
    writer.tell(events.StepReached(at=START, round=number, step=step))


def live(launch: Launch) -> list[Any]:
    """Return (step, values) of what holds."""
    judged = read_metric_history(launch.paths.run(0))
    return [
        (one.row.step, dict(one.select_values_not_undone()))
        for one in judged
        if one.select_values_not_undone()
    ]


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
    rows = list(read_metric_history(launch.paths.run(0)))
    assert [row.row.place for row in rows] == [(1, 0)] * 5 + [(1, 1)]
    assert last_values_not_undone(rows) == {"loss": 1}


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
    rows = list(read_metric_history(launch.paths.run(0)))
    assert [row.row.step for row in rows] == [0, None, None, 2]
    numbers = last_numbers_not_undone(rows)
    assert json.dumps(numbers) == '{"loss": NaN, "flag": 1}'


def test_rows_that_come_during_a_reading_wait_for_the_next_one(desk: Desk) -> None:
    """A run that is training does not confuse who reads it."""
    launch = desk.freeze()
    Writer(launch=launch).start()
    log(launch, 1, step=0, round=0, loss=0)
    reading = read_metric_history(launch.paths.run(0))
    log(launch, 1, step=1, round=0, loss=1, late=1)
    assert [one.row.step for one in reading] == [0]
    assert [step for step, _ in live(launch)] == [0, 1]


def test_run_that_never_began_has_no_history(desk: Desk) -> None:
    """Nothing was logged, and nothing is wrong."""
    assert live(desk.freeze()) == []


def test_last_values_are_of_all_attempts_the_later_one_first(desk: Desk) -> None:
    """What only an earlier attempt logged stays the run's result."""
    launch = desk.freeze()
    for attempt, values in ((1, {"a": 1, "b": 1}), (2, {}), (3, {"a": 3})):
        Writer(launch=launch, attempt=attempt).start()
        log(launch, attempt, step=attempt, round=0, **values)
    assert read_last_metrics(launch.paths.run(0), (3, 0)) == {"a": 3, "b": 1}


def undone_by_a_restart(desk: Desk) -> Launch:
    """Return a run that restarted at step 4 and has not logged its accuracy again."""
    launch = desk.freeze()
    for attempt, first, steps in ((1, 0, range(8)), (2, 4, (4,))):
        writer = Writer(launch=launch, attempt=attempt)
        writer.start()
        reach(writer, 0, first)
        for step in steps:
            accuracy = {"accuracy": step} if attempt == 1 and step % 3 == 0 else {}
            log(launch, attempt, step=step, round=0, loss=10 * attempt + step, **accuracy)
    return launch


def test_status_shows_no_value_that_a_restart_has_undone(desk: Desk) -> None:
    """The accuracy of step 6 is not the run's: it stands at step 4."""
    (record,) = read_run_records(undone_by_a_restart(desk), metrics=True)
    assert record.metrics == {"loss": 24, "accuracy": 3}


def test_value_behind_too_many_rows_is_left_out(desk: Desk, monkeypatch: Any) -> None:
    """Rather no value than a wrong one, or a wait of minutes."""
    launch = undone_by_a_restart(desk)
    monkeypatch.setattr(history, "_MOST_READ", 100)
    (record,) = read_run_records(launch, metrics=True)
    assert record.metrics == {"loss": 24}


ROUNDS = st.lists(
    st.tuples(
        st.booleans(),  # whether it is a new attempt
        st.integers(0, 6),  # its first step
        st.booleans(),  # whether that is known
        st.lists(
            st.tuples(
                st.one_of(st.none(), st.integers(0, 8)),
                st.sampled_from("ab"),
                st.booleans(),  # whether a rank of the round before wrote it
            ),
            max_size=5,
        ),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60)
@given(rounds=ROUNDS)
def test_last_values_are_those_of_the_whole_history(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[Any]
) -> None:
    """Whatever the rounds did, the short way finds what reading all rows finds."""
    launch, attempt, number, value = Desk(folder=tmp_path_factory.mktemp("d")).freeze(), 0, 0, 0
    for new, first, known, rows in rounds:
        attempt, number = (attempt + 1, 0) if new or not attempt else (attempt, number + 1)
        writer = Writer(launch=launch, attempt=attempt)
        if number == 0:
            writer.start()
        else:
            writer.round(number)
        if known:
            reach(writer, number, first)
        for step, key, late in rows:
            value += 1
            log(launch, attempt, step=step, round=max(0, number - late), **{key: value})
    (record,) = read_run_records(launch, metrics=True)
    whole = last_values_not_undone(read_metric_history(launch.paths.run(0)))
    assert record.metrics == whole


@pytest.mark.parametrize("scale", [1, 64])
def test_a_step_of_ones_own_loses_no_value_in_a_restart(desk: Desk, scale: int) -> None:
    """Rows are undone by the step of the run, not by what the user counts."""
    launch = desk.freeze()
    for attempt, first, end in ((1, 0, 60), (2, 50, 100)):
        writer = Writer(launch=launch, attempt=attempt)
        writer.start()
        writer.tell(events.StepReached(at=START, round=0, step=first))
        for step in range(first, end):
            log(launch, attempt, step=(step + 1) * scale, run_step=step, round=0, loss=attempt)
        if attempt == 1:
            log(launch, 1, step=50 * scale, run_step=49, round=0, checked=7)
    held = {
        one.row.step: one.select_values_not_undone()["loss"]
        for one in read_metric_history(launch.paths.run(0))
        if "loss" in one.select_values_not_undone()
    }
    assert held == {(step + 1) * scale: 1 if step < 50 else 2 for step in range(100)}
    assert read_last_metrics(launch.paths.run(0), (2, 0)) == {"loss": 2, "checked": 7}
