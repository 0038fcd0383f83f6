"""Curves with fewer points that look the same, and bands of many curves. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import quantiles

from hpckit.features.reporting.document import CurveBand, CurvePoints
from hpckit.values import dataclass

COLUMNS = 400
"""A curve has at most two points in each of these, its extremes, and its ends."""

BAND_COLUMNS = 60
_LEAST_RUNS = 3
_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """The steps that a chart shows."""

    low: float
    high: float

    def column(self, step: float, columns: int) -> int:
        """Return the column of a step."""
        if self.high <= self.low:
            return 0
        return min(int((step - self.low) / (self.high - self.low) * columns), columns - 1)

    def middle(self, column: int, columns: int) -> float:
        """Return the step in the middle of a column."""
        return self.low + (self.high - self.low) * (column + 0.5) / columns


def step_range(curves: Sequence[Sequence[float]]) -> StepRange:
    """Return the range of all these steps; there has to be one at least."""
    some = [steps for steps in curves if steps]
    return StepRange(low=min(map(min, some)), high=max(map(max, some)))


def thinned(
    steps: Sequence[float], values: Sequence[float], shown: StepRange, columns: int = COLUMNS
) -> CurvePoints:
    """Return a curve with the extremes of each column, in their order: spikes stay, and both ends.

    A value that is not finite is a gap, unless its column has others.
    """
    kept = kept_places(steps, values, shown, columns)
    return CurvePoints(
        steps=tuple(rounded(steps[place]) for place in kept),
        values=tuple(
            rounded(values[place]) if math.isfinite(values[place]) else None for place in kept
        ),
    )


def kept_places(
    steps: Sequence[float], values: Sequence[float], shown: StepRange, columns: int = COLUMNS
) -> Sequence[int]:
    """Return the places of the values that `thinned` keeps."""
    if len(steps) <= columns:
        return range(len(steps))
    return sorted({*_extremes(steps, values, shown, columns), 0, len(steps) - 1})


def _extremes(
    steps: Sequence[float], values: Sequence[float], shown: StepRange, columns: int
) -> Iterator[int]:
    """Yield the places of the smallest and the largest value of each column."""
    here, low, high = -1, -1, -1
    for place, (step, value) in enumerate(zip(steps, values, strict=True)):
        column = shown.column(step, columns)
        if column != here:
            yield from sorted({low, high} - {-1})
            here, low, high = column, place, place
            continue
        if math.isfinite(value):
            low = place if not values[low] <= value else low
            high = place if not values[high] >= value else high
    yield from sorted({low, high} - {-1})


def column_means(
    steps: Sequence[float], values: Sequence[float], shown: StepRange
) -> dict[int, float]:
    """Return the mean of a curve in each column of a band."""
    sums: dict[int, tuple[float, int]] = {}
    for step, value in zip(steps, values, strict=True):
        if math.isfinite(value):
            column = shown.column(step, BAND_COLUMNS)
            total, count = sums.get(column, (0.0, 0))
            sums[column] = (total + value, count + 1)
    return {column: total / count for column, (total, count) in sums.items()}


def band(means: Sequence[dict[int, float]], shown: StepRange) -> CurveBand | None:
    """Return the band of curves; None if at no step there are enough of them."""
    found: list[tuple[float, float, float, float]] = []
    for column in range(BAND_COLUMNS):
        here = [one[column] for one in means if column in one and math.isfinite(one[column])]
        if len(here) >= _LEAST_RUNS:
            tenths = quantiles(here, n=10, method="inclusive")
            found.append((shown.middle(column, BAND_COLUMNS), tenths[0], tenths[4], tenths[8]))
    if not found:
        return None
    steps, low, middle, high = (tuple(map(rounded, one)) for one in zip(*found, strict=True))
    return CurveBand(
        runs=sum(bool(one) for one in means), steps=steps, low=low, middle=middle, high=high
    )


def rounded(value: float) -> float:
    """Return a number with as many digits as anybody sees in a chart; a step stays whole."""
    if isinstance(value, int) or value.is_integer():
        return int(value) if abs(value) < 1e15 else value  # noqa: PLR2004  # exact in JavaScript
    return float(f"{value:.{_DIGITS}g}")
