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

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from hpckit.model.metrics.rows import JudgedRow, MetricRow, RoundStart, RowPlace, Step
from hpckit.values import dataclass, field

_NEVER = float("inf")
_EVERYTHING = float("-inf")
_NOTHING: frozenset[str] = frozenset()


def effective_history(
    rows: Iterable[MetricRow], starts: Iterable[RoundStart]
) -> Iterator[JudgedRow]:
    """Yield all rows in their order, each with the names of its values that were undone.

    `rows` are ordered by attempt, and within an attempt as they were written. They are iterated
    twice and have to be the same both times. `starts` are the rounds whose first step is known, in
    any order.
    """
    floors = RoundFloors.of(starts)
    turns: dict[str, _Turns] = {}
    for position, row, kept in _numbered(rows, floors):
        for key in row.values if kept else ():
            if key not in turns:
                turns[key] = _Turns()
            turns[key].see(position, row.step)
    for turn in turns.values():
        turn.close()
    for position, row, kept in _numbered(rows, floors):
        yield JudgedRow(row=row, undone=_undone(position, row, turns, kept=kept))


def _undone(
    position: int, row: MetricRow, turns: Mapping[str, _Turns], *, kept: bool
) -> frozenset[str]:
    if not kept:
        return frozenset(row.values)
    undone = [key for key in row.values if not turns[key].holds(position, row.step)]
    return frozenset(undone) if undone else _NOTHING


def _numbered(
    rows: Iterable[MetricRow], floors: RoundFloors
) -> Iterator[tuple[int, MetricRow, bool]]:
    """Yield each row with its position, and whether rules 1 and 2 keep it."""
    latest: RowPlace = (0, 0)
    for position, row in enumerate(rows):
        latest = max(latest, row.place)
        done_in = row.done_in
        kept = row.place == latest and (done_in is None or done_in < floors.after(row.place))
        yield position, row, kept


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFloors:
    """For every round, the lowest step at which a later one began."""

    places: list[RowPlace]
    lowest: list[float]

    @classmethod
    def of(cls, starts: Iterable[RoundStart]) -> RoundFloors:
        """Return those of rounds whose first step is known, in any order."""
        ordered = sorted(starts, key=lambda start: start.place)
        return cls(
            places=[start.place for start in ordered],
            lowest=_lowest_from([start.step for start in ordered]),
        )

    def after(self, place: RowPlace) -> float:
        """Return the lowest step at which a round after `place` began; infinity without one."""
        return self.lowest[bisect_right(self.places, place)]


def _lowest_from(steps: Iterable[float]) -> list[float]:
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

    def see(self, position: int, step: Step | None) -> None:
        """Take the key's next value into account."""
        if step is None:
            return
        if step <= self.last:
            self.positions.append(position)
            self.steps.append(step)
        self.last = step

    def close(self) -> None:
        """Replace the step of each turn by the lowest one from there on."""
        self.steps = array("d", _lowest_from(self.steps))

    def holds(self, position: int, step: Step | None) -> bool:
        """Return whether no later value undoes the one at this position."""
        if step is None:
            return True
        while self._next < len(self.positions) and self.positions[self._next] <= position:
            self._next += 1
        return step < self.steps[self._next]
