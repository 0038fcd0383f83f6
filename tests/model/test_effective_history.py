"""What the effective history promises: after any restarts, what still holds, once each."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.metrics import (
    JudgedRow,
    MetricRow,
    RoundStart,
    RowPlace,
    Step,
    mark_values_undone_by_restarts,
)


def row(place: RowPlace, step: Step | None, **values: Any) -> MetricRow:
    """Return a row that a round wrote."""
    return MetricRow(place=place, step=step, at="2026-01-01T00:00:00.000+00:00", values=values)


def start(place: RowPlace, step: int) -> RoundStart:
    """Return the start of a round at a step."""
    return RoundStart(place=place, step=step)


def live(judged: Iterable[JudgedRow]) -> list[tuple[Step | None, str, Any]]:
    """Return the values that hold, in order."""
    return [
        (one.row.step, key, value) for one in judged for key, value in one.select_values_not_undone().items()
    ]


PLACE = st.tuples(st.integers(1, 3), st.integers(0, 2))
STEP = st.none() | st.integers(0, 12)
VALUES = st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3)
ANY_ROWS = st.lists(st.tuples(PLACE, STEP, VALUES), max_size=40).map(
    lambda drawn: sorted(
        (row(place, step, **values) for place, step, values in drawn), key=lambda one: one.place[0]
    )
)
STARTS = st.lists(st.tuples(PLACE, st.integers(0, 12)), max_size=6).map(
    lambda drawn: [start(place, step) for place, step in drawn]
)


@given(rows=ANY_ROWS, starts=STARTS)
def test_each_step_and_key_has_at_most_one_value_that_holds(
    rows: list[MetricRow], starts: list[RoundStart]
) -> None:
    """Whatever was written, by whomever, no step has two values of a key."""
    found = live(mark_values_undone_by_restarts(rows, starts))
    places = [(step, key) for step, key, _ in found if step is not None]
    assert len(places) == len(set(places))


@given(rows=ANY_ROWS, starts=STARTS)
def test_steps_of_a_key_increase(rows: list[MetricRow], starts: list[RoundStart]) -> None:
    """A curve of what holds never goes back."""
    found = live(mark_values_undone_by_restarts(rows, starts))
    for name in "abc":
        steps = [step for step, key, _ in found if key == name and step is not None]
        assert steps == sorted(set(steps))


@given(rows=ANY_ROWS, starts=STARTS)
def test_what_holds_holds_again(rows: list[MetricRow], starts: list[RoundStart]) -> None:
    """The history of the values that hold is these values."""
    kept = [
        row(one.row.place, one.row.step, **one.select_values_not_undone())
        for one in mark_values_undone_by_restarts(rows, starts)
    ]
    assert live(mark_values_undone_by_restarts(kept, starts)) == live(
        mark_values_undone_by_restarts(rows, starts)
    )


@given(rows=ANY_ROWS, starts=STARTS)
def test_rows_come_out_as_they_went_in(rows: list[MetricRow], starts: list[RoundStart]) -> None:
    """Rows are marked, never dropped, changed or put into another order."""
    assert [one.row for one in mark_values_undone_by_restarts(rows, starts)] == rows


@given(rows=ANY_ROWS, starts=STARTS)
def test_each_value_is_undone_for_a_reason(rows: list[MetricRow], starts: list[RoundStart]) -> None:
    """The streamed answer is that of the rules, applied to each value with all rows at hand."""
    for position, one in enumerate(mark_values_undone_by_restarts(rows, starts)):
        assert one.undone == {key for key in one.row.values if _is_undone(rows, starts, position, key)}


def _is_undone(rows: list[MetricRow], starts: list[RoundStart], position: int, key: str) -> bool:
    mine = rows[position]
    if not _kept(rows, starts, position):
        return True
    later = [
        rows[other].step
        for other in range(position + 1, len(rows))
        if key in rows[other].values and _kept(rows, starts, other)
    ]
    return any(step is not None and mine.step is not None and step <= mine.step for step in later)


def _kept(rows: list[MetricRow], starts: list[RoundStart], position: int) -> bool:
    mine = rows[position]
    left_over = any(other.place > mine.place for other in rows[:position])
    step = mine.step
    restarted = step is not None and any(one.place > mine.place and one.step <= step for one in starts)
    return not (left_over or restarted)


@dataclass(frozen=True)
class Round:
    """A round that begins at a step and is killed before another one."""

    place: RowPlace
    first: int
    end: int


@st.composite
def rounds(draw: st.DrawFn) -> list[Round]:
    """Draw rounds of training: each begins at a step that an earlier one has reached."""
    drawn, reached = list[Round](), 0
    for number in range(draw(st.integers(1, 6))):
        first = draw(st.integers(0, reached))
        end = draw(st.integers(first, first + 10))
        drawn.append(Round((1 + number // 2, number % 2), first, end))
        reached = max(reached, end)
    return drawn


@given(history=rounds())
def test_restart_keeps_exactly_the_steps_below_it(history: list[Round]) -> None:
    """After a restart at step f, of all earlier rounds exactly the steps below f hold."""
    rows = [row(one.place, step, a=one) for one in history for step in range(one.first, one.end)]
    starts = [start(one.place, one.first) for one in history]
    expected: dict[int, Round] = {}
    for one in history:
        expected = {step: by for step, by in expected.items() if step < one.first}
        expected |= dict.fromkeys(range(one.first, one.end), one)
    assert live(mark_values_undone_by_restarts(rows, starts)) == [
        (step, "a", by) for step, by in sorted(expected.items())
    ]


def test_restart_undoes_what_is_not_logged_again() -> None:
    """A value logged now and then is undone by the restart itself, not by its next value."""
    rows = [row((1, 0), 50, accuracy=0.5), row((1, 0), 150, accuracy=0.9), row((2, 0), 100, loss=1)]
    found = live(mark_values_undone_by_restarts(rows, [start((1, 0), 0), start((2, 0), 100)]))
    assert found == [(50, "accuracy", 0.5), (100, "loss", 1)]


def test_round_without_a_known_first_step_undoes_what_it_logs_again() -> None:
    """A header at step 0 of a restarted script does not undo the whole run."""
    rows = [row((1, 0), step, loss=step) for step in range(5)]
    rows += [row((2, 0), 0, parameters=7), row((2, 0), 3, loss=3.5)]
    found = live(mark_values_undone_by_restarts(rows, []))
    assert found == [*((step, "loss", step) for step in range(3)), (0, "parameters", 7), (3, "loss", 3.5)]


def test_attempt_that_was_cut_off_undoes_nothing() -> None:
    """Rows count by attempt, not by the time at which a left-over rank wrote them."""
    rows = [row((1, 0), step, loss=1) for step in range(20)]
    rows += [row((2, 0), step, loss=2) for step in range(10, 13)]
    found = live(mark_values_undone_by_restarts(rows, [start((1, 0), 0), start((2, 0), 10)]))
    assert [value for _, _, value in found] == [1] * 10 + [2] * 3


def test_rank_that_was_left_over_from_an_earlier_round_adds_nothing() -> None:
    """What a round writes after the next one has begun to write does not hold."""
    rows = [row((1, 0), 0, loss=1), row((1, 1), 0, loss=2), row((1, 0), 1, loss=1, late=1)]
    assert live(mark_values_undone_by_restarts(rows, [])) == [(0, "loss", 2)]


def test_last_value_of_a_step_holds() -> None:
    """Of several values of a key in one step the last one holds, and other keys stay."""
    rows = [row((1, 0), 0, loss=1, lr=9), row((1, 0), 0, loss=2), row((1, 0), 1, loss=3)]
    assert live(mark_values_undone_by_restarts(rows, [])) == [(0, "lr", 9), (0, "loss", 2), (1, "loss", 3)]


def test_values_without_a_step_are_never_undone_by_a_restart() -> None:
    """Nothing says what would replace them, so none of them is hidden."""
    rows = [row((1, 0), None, size=1, seed=7), row((2, 0), None, size=2)]
    found = live(mark_values_undone_by_restarts(rows, [start((2, 0), 0)]))
    assert found == [(None, "size", 1), (None, "seed", 7), (None, "size", 2)]


class _Many:
    """A hundred thousand rows that are made as they are asked for; the second half is a restart."""

    def __iter__(self) -> Iterator[MetricRow]:
        for place in ((1, 0), (2, 0)):
            for step in range(50_000):
                yield row(place, step, loss=0.5)


def test_history_is_streamed() -> None:
    """A hundred thousand rows pass through less than a megabyte of memory."""
    tracemalloc.start()
    try:
        judged = mark_values_undone_by_restarts(_Many(), [start((2, 0), 0)])
        assert sum(len(one.select_values_not_undone()) for one in judged) == 50_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
