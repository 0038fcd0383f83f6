"""A curve in a few lines of text: each column is drawn from its least to its largest value. Pure.

So a spike is seen in any width. Between values that are far apart there is a line. Braille
characters give two columns and four rows of dots a cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from hpckit.values import dataclass, field

Point = tuple[float, float]
"""A step and a value."""

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_EMPTY = 0x2800
_ROWS = 4
_MOST_POINTS = 4096
_MERGED = 8
"""When there are too many points, this many neighbours become two: the least and the largest."""


@dataclass(slots=True)
class Curve:
    """The points of a curve that grows, never more than a few thousand; spikes are kept."""

    points: list[Point] = field(default_factory=list)

    def add_points(self, points: Iterable[Point]) -> None:
        """Add points, but for those that are no finite numbers."""
        for step, value in points:
            if math.isfinite(step) and math.isfinite(value):
                self.points.append((step, value))
            if len(self.points) > _MOST_POINTS:
                self._merge_neighbours_to_extremes()

    def _merge_neighbours_to_extremes(self) -> None:
        merged: list[Point] = []
        for start in range(0, len(self.points), _MERGED):
            some = self.points[start : start + _MERGED]
            ends = {min(some, key=itemgetter(1)), max(some, key=itemgetter(1))}
            merged += sorted(ends)
        self.points = merged


def draw_braille_plot(points: Sequence[Point], width: int, height: int) -> list[str]:
    """Return `height` lines of at most `width` characters; none without points."""
    if not points or width < 1 or height < 1:
        return []
    columns = _find_column_ranges(points, width * 2)
    low = min(least for least, _ in columns.values())
    high = max(most for _, most in columns.values())
    rows = height * _ROWS
    cells = [[_EMPTY] * width for _ in range(height)]
    for column, (least, most) in _fill_column_gaps(columns).items():
        for row in range(
            _value_to_dot_row(least, low, high, rows), _value_to_dot_row(most, low, high, rows) + 1
        ):
            down = rows - 1 - row
            cells[down // _ROWS][column // 2] |= _DOTS[column % 2][down % _ROWS]
    return ["".join(map(chr, line)).rstrip(chr(_EMPTY)) for line in cells]


def _find_column_ranges(points: Sequence[Point], count: int) -> dict[int, tuple[float, float]]:
    first, last = min(points)[0], max(points)[0]
    span = last - first
    found: dict[int, tuple[float, float]] = {}
    for step, value in points:
        share = (step - first) / span if span > 0 and math.isfinite(span) else 0.0
        place = min(int(share * count), count - 1)
        least, most = found.get(place, (value, value))
        found[place] = (min(least, value), max(most, value))
    return found


def _fill_column_gaps(columns: Mapping[int, tuple[float, float]]) -> dict[int, tuple[float, float]]:
    """Return the columns with a straight line where there are no values between two of them."""
    found, known = dict(columns), sorted(columns)
    for before, behind in itertools.pairwise(known):
        first, last = (sum(half / 2 for half in columns[place]) for place in (before, behind))
        for place in range(before + 1, behind):
            share = (place - before) / (behind - before)
            value = first * (1 - share) + last * share
            found[place] = (value, value)
    return found


def _value_to_dot_row(value: float, low: float, high: float, rows: int) -> int:
    # Halves: the difference of two large numbers of different signs is infinite.
    span = high / 2 - low / 2
    return round((value / 2 - low / 2) / span * (rows - 1)) if span > 0 else 0
