"""The effective history of a run's metrics: which logged values still hold after restarts. Pure.

A value of one key is undone by the first of these rules that applies:

1. A later round began at the step of the run in which it was logged, or before. What a round did
   from the step on at which a later one begins was done again, or never became part of the run.
   Rounds are ordered by (attempt, round), not by time, so that an attempt that was cut off and went
   on writing undoes nothing.
2. It was written by a round of the attempt after a later one had begun to write: its rank was left
   over.
3. The same key has a later value at the same step or at an earlier one. So of several values in one
   step the last one holds, and code that counts back by itself undoes its own.

Rules 1 and 3 do not touch values without a step: nothing says what would replace them. Of all other
values, each (step, key) has at most one that holds, and the steps of a key's values increase.

Rows are streamed: two passes, of which the first keeps 16 bytes for each value at which a key's
steps do not increase (rule 3), and nothing for all others.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from hpckit.model.plain import LARGEST, is_within_limit
from hpckit.values import dataclass, field

Step = int | float

RowPlace = tuple[int, int]
"""Who wrote a row: the attempt, from 1, and the round, from 0."""

DROPPING_ROWS, DROPPED_ROWS = "metrics are dropped for now", "rows of metrics were dropped"
"""What a run warns of that cannot write its metrics: at the first row, and with their number at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One call of `run.log(...)`: `at` is UTC as recorded; `step` is null if it has none.

    `run_step` is the step of the run in which it was logged, if `step` is another number, such as
    one that counts from 1, or samples.
    """

    place: RowPlace
    step: Step | None
    at: str
    values: Mapping[str, Any]
    run_step: Step | None = None

    @property
    def run_step_when_logged(self) -> Step | None:
        """The step of the run in which it was logged, as far as is known."""
        return self.step if self.run_step is None else self.run_step


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStart:
    """A round whose ranks began at this step: what earlier rounds did from there is undone."""

    place: RowPlace
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow:
    """A row, and the names of those of its values that were undone."""

    row: MetricRow
    undone: frozenset[str] = frozenset()

    def select_values_not_undone(self) -> Mapping[str, Any]:
        """Return the values that still hold."""
        if not self.undone:
            return self.row.values
        return {name: one for name, one in self.row.values.items() if name not in self.undone}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """One value of a row, by itself."""

    row: MetricRow
    key: str
    value: Any
    undone: bool


def iterate_row_values(judged: JudgedRow) -> Iterator[MetricValue]:
    """Yield the values of a row, undone ones as well."""
    for key, value in judged.row.values.items():
        yield MetricValue(row=judged.row, key=key, value=value, undone=key in judged.undone)


def normalize_step(step: object) -> Step | None:
    """Return a step as recorded, a whole one as int; None for anything but a 64-bit number."""
    if not isinstance(step, int | float) or isinstance(step, bool) or not is_within_limit(step, LARGEST):
        return None
    return int(step) if step == int(step) else step


_NOT_FINITE = frozenset({"nan", "inf", "-inf"})
"""How `run.log` writes numbers that JSON lacks."""


def metric_value_to_number(value: object) -> float | int | None:
    """Return a value as a number, which may be NaN or infinite; None for texts and null.

    True is 1 and False is 0. What no float can hold is infinite.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not is_within_limit(value):
        return math.inf if value > 0 else -math.inf
    if isinstance(value, int | float):
        return value
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else None


_NEVER = float("inf")
_EVERYTHING = float("-inf")
_NOTHING: frozenset[str] = frozenset()


def mark_values_undone_by_restarts(
    rows: Iterable[MetricRow], starts: Iterable[RoundStart]
) -> Iterator[JudgedRow]:
    """Yield all rows in their order, each with the names of its values that were undone.

    `rows` are ordered by attempt, and within an attempt as they were written. They are iterated twice and
    have to be the same both times. `starts` are the rounds whose first step is known, in any order.
    """
    floors = RoundFloors.from_round_starts(starts)
    turns: dict[str, _Turns] = {}
    for position, row, kept in _check_rows_undone_by_rounds(rows, floors):
        for key in row.values if kept else ():
            if key not in turns:
                turns[key] = _Turns()
            turns[key].record_next_step(position, row.step)
    for turn in turns.values():
        turn.apply_suffix_minima()
    for position, row, kept in _check_rows_undone_by_rounds(rows, floors):
        undone = [key for key in row.values if not (kept and turns[key].is_still_valid(position, row.step))]
        yield JudgedRow(row=row, undone=frozenset(undone) if undone else _NOTHING)


def _check_rows_undone_by_rounds(
    rows: Iterable[MetricRow], floors: RoundFloors
) -> Iterator[tuple[int, MetricRow, bool]]:
    """Yield each row with its position, and whether rules 1 and 2 keep it."""
    latest: RowPlace = (0, 0)
    for position, row in enumerate(rows):
        latest = max(latest, row.place)
        done_in = row.run_step_when_logged
        kept = row.place == latest and (
            done_in is None or done_in < floors.lowest_start_step_after(row.place)
        )
        yield position, row, kept


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFloors:
    """For every round, the lowest step at which a later one began."""

    places: list[RowPlace]
    lowest: list[float]

    @classmethod
    def from_round_starts(cls, starts: Iterable[RoundStart]) -> RoundFloors:
        """Return those of rounds whose first step is known, in any order."""
        ordered = sorted(starts, key=lambda start: start.place)
        return cls(
            places=[start.place for start in ordered],
            lowest=_compute_suffix_minima([start.step for start in ordered]),
        )

    def lowest_start_step_after(self, place: RowPlace) -> float:
        """Return the lowest step at which a round after `place` began; infinity without one."""
        return self.lowest[bisect_right(self.places, place)]


def _compute_suffix_minima(steps: Iterable[float]) -> list[float]:
    """Return the lowest step from each place on; one more, for the end, than there are steps."""
    return list(accumulate(reversed(list(steps)), min, initial=_NEVER))[::-1]


@dataclass(slots=True)
class _Turns:
    """The values of one key at which its steps do not increase.

    The first value that undoes another one is such a turn: all between the two are at later steps.
    Positions are those of rows; questions are asked in ascending order of positions.
    """

    positions: array[int] = field(default_factory=lambda: array("q"))
    steps: array[float] = field(default_factory=lambda: array("d"))
    last: float = _EVERYTHING
    _next: int = 0

    def record_next_step(self, position: int, step: Step | None) -> None:
        """Take the key's next value into account."""
        if step is None:
            return
        if step <= self.last:
            self.positions.append(position)
            self.steps.append(step)
        self.last = step

    def apply_suffix_minima(self) -> None:
        """Replace the step of each turn by the lowest one from there on."""
        self.steps = array("d", _compute_suffix_minima(self.steps))

    def is_still_valid(self, position: int, step: Step | None) -> bool:
        """Return whether no later value undoes the one at this position."""
        if step is None:
            return True
        while self._next < len(self.positions) and self.positions[self._next] <= position:
            self._next += 1
        return step < self.steps[self._next]
