"""Curves: the metrics of runs with fewer points that look the same, and bands of many curves.

Of a few runs each has a curve, all the others have a band. The rows of each run are read once; what
is kept of a run is a few hundred points for each metric.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import quantiles

from hpckit.features.reporting.document import CurveBand, CurvePoints, MetricCurves, RunCurve
from hpckit.features.reporting.figure import RunClock, build_run_clock, parse_recorded_time
from hpckit.model.metrics import MetricValue, RowPlace, iterate_row_values, metric_value_to_number
from hpckit.model.run import RunView
from hpckit.record.launches import Launch
from hpckit.record.metrics.history import read_metric_history
from hpckit.values import dataclass, field, replace
from hpckit.views.accounts import list_time_spans_by_run

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

    def column_of_step(self, step: float, columns: int) -> int:
        """Return the column of a step."""
        if self.high <= self.low:
            return 0
        return min(int((step - self.low) / (self.high - self.low) * columns), columns - 1)

    def middle_of_column(self, column: int, columns: int) -> float:
        """Return the step in the middle of a column."""
        return self.low + (self.high - self.low) * (column + 0.5) / columns


def find_step_range(curves: Sequence[Sequence[float]]) -> StepRange:
    """Return the range of all these steps; there has to be one at least."""
    some = [steps for steps in curves if steps]
    return StepRange(low=min(map(min, some)), high=max(map(max, some)))


def thin_curve(
    steps: Sequence[float], values: Sequence[float], shown: StepRange, columns: int = COLUMNS
) -> CurvePoints:
    """Return a curve with the extremes of each column, in their order: spikes stay, and both ends.

    A value that is not finite is a gap, unless its column has others.
    """
    kept = choose_kept_point_indices(steps, values, shown, columns)
    return CurvePoints(
        steps=tuple(round_for_chart(steps[place]) for place in kept),
        values=tuple(
            round_for_chart(values[place]) if math.isfinite(values[place]) else None for place in kept
        ),
    )


def choose_kept_point_indices(
    steps: Sequence[float], values: Sequence[float], shown: StepRange, columns: int = COLUMNS
) -> Sequence[int]:
    """Return the places of the values that `thinned` keeps."""
    if len(steps) <= columns:
        return range(len(steps))
    return sorted({*_find_column_extremes(steps, values, shown, columns), 0, len(steps) - 1})


def _find_column_extremes(
    steps: Sequence[float], values: Sequence[float], shown: StepRange, columns: int
) -> Iterator[int]:
    here, low, high = -1, -1, -1
    for place, (step, value) in enumerate(zip(steps, values, strict=True)):
        column = shown.column_of_step(step, columns)
        if column != here:
            yield from sorted({low, high} - {-1})
            here, low, high = column, place, place
            continue
        if math.isfinite(value):
            low = place if not (math.isfinite(values[low]) and values[low] <= value) else low
            high = place if not (math.isfinite(values[high]) and values[high] >= value) else high
    yield from sorted({low, high} - {-1})


def compute_column_means(
    steps: Sequence[float], values: Sequence[float], shown: StepRange
) -> dict[int, float]:
    """Return the mean of a curve in each column of a band."""
    sums: dict[int, tuple[float, int]] = {}
    for step, value in zip(steps, values, strict=True):
        if math.isfinite(value):
            column = shown.column_of_step(step, BAND_COLUMNS)
            total, count = sums.get(column, (0.0, 0))
            sums[column] = (total + value, count + 1)
    return {column: total / count for column, (total, count) in sums.items()}


def build_curve_band(means: Sequence[dict[int, float]], shown: StepRange) -> CurveBand | None:
    """Return the band of curves; None if at no step there are enough of them."""
    found: list[tuple[float, float, float, float]] = []
    for column in range(BAND_COLUMNS):
        here = [mean[column] for mean in means if column in mean and math.isfinite(mean[column])]
        if len(here) >= _LEAST_RUNS:
            tenths = quantiles(here, n=10, method="inclusive")
            found.append((shown.middle_of_column(column, BAND_COLUMNS), tenths[0], tenths[4], tenths[8]))
    if not found:
        return None
    steps, low, middle, high = (tuple(map(round_for_chart, column)) for column in zip(*found, strict=True))
    return CurveBand(runs=sum(bool(mean) for mean in means), steps=steps, low=low, middle=middle, high=high)


def round_for_chart(value: float) -> float:
    """Return a number with as many digits as anybody sees in a chart; a step stays whole."""
    if isinstance(value, int) or value.is_integer():
        return int(value) if abs(value) < 1e15 else value  # noqa: PLR2004  # exact in JavaScript
    return float(f"{value:.{_DIGITS}g}")


MOST_METRICS = 12
_MOST_COLUMNS = 12_000
"""Of all curves of a report together, and again of all that was undone: two megabytes at most."""
_LEAST_COLUMNS = 4
"""Of a piece that was undone: its ends and extremes are seen."""


@dataclass(slots=True)
class CurveValues:
    """Values over steps; `at_s` is when each was logged, NaN if unknown, and empty for a band."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    at_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: float, value: float) -> None:
        """Add a value."""
        self.steps.append(step)
        self.values.append(value)


@dataclass(slots=True)
class MetricPoints:
    """A metric of a run: what holds, and what was undone, by the round that logged it.

    `restarts` are the places of the values that are the first ones of a later round.
    """

    live: CurveValues = field(default_factory=CurveValues)
    undone: dict[RowPlace, CurveValues] = field(default_factory=dict)
    not_finite: int = 0
    restarts: list[int] = field(default_factory=list)
    _place: RowPlace | None = None

    def add(self, one: MetricValue, number: float, at_s: float | None) -> None:
        """Add a value that has a step."""
        step, place = one.row.step, one.row.place
        assert step is not None  # noqa: S101  # the caller's promise
        points = self.undone.setdefault(place, CurveValues()) if one.undone else self.live
        if not one.undone:
            if self._place not in {None, place} or (self._place is None and self.undone):
                self.restarts.append(len(points.steps))
            self._place = place
            self.not_finite += not -_LARGEST <= number <= _LARGEST
        points.add(step, number)
        if at_s is not None:
            points.at_s.append(at_s)


def read_metric_curves(
    runs: Iterable[tuple[Launch, RunView]], highlighted: Collection[str], first: str | None, now: datetime
) -> tuple[tuple[MetricCurves, ...], int]:
    """Return the curves of each metric, and how many metrics were left out.

    `highlighted` are the ids of the runs that have a curve of their own, `first` the metric that
    comes first; `now` ends what a running run does.
    """
    clocks: dict[str, RunClock | None] = {}
    chosen: dict[str, dict[str, MetricPoints]] = {}
    others: dict[str, list[CurveValues]] = {}
    for launch, view in runs:
        own = view.record.id in highlighted
        if own:
            clocks[view.record.id] = read_run_clock(launch, view, now)
        for key, curve in read_metric_points(launch, view.record.index, whole=own).items():
            if own:
                chosen.setdefault(key, {})[view.record.id] = curve
            elif len(curve.live.steps) > 1:
                others.setdefault(key, []).append(_thin_for_band(curve.live))
    drawn = (
        key
        for key in dict.fromkeys((*chosen, *others))
        if key in others or any(len(metric.live.steps) > 1 for metric in chosen[key].values())
    )
    keys = sorted(drawn, key=lambda key: key != first)
    shown = keys[:MOST_METRICS]
    # Together these curves are a part of a report's size.
    curves = sum(len(chosen.get(key, ())) for key in shown)
    columns = min(max(_MOST_COLUMNS // max(curves, 1), BAND_COLUMNS), COLUMNS)
    found = (
        _build_metric_curves(key, chosen.get(key, {}), others.get(key, ()), clocks, columns) for key in shown
    )
    return tuple(found), max(len(keys) - MOST_METRICS, 0)


def read_run_clock(launch: Launch, view: RunView, now: datetime) -> RunClock | None:
    """Return the clock of a run; None if it never began."""
    return build_run_clock(list_time_spans_by_run(launch, [view], now)[view.record.index])


def read_metric_points(launch: Launch, index: int, *, whole: bool) -> dict[str, MetricPoints]:
    """Return the values of a run by metric: numbers that have a step.

    The `whole` of it is with times, and with what was undone.
    """
    found: dict[str, MetricPoints] = {}
    for judged in read_metric_history(launch.paths.run(index)):
        at_s = (parse_recorded_time(judged.row.at) or math.nan) if whole else None
        for value in iterate_row_values(judged):
            number = metric_value_to_number(value.value)
            if number is None or value.row.step is None or (value.undone and not whole):
                continue
            found.setdefault(value.key, MetricPoints()).add(value, float(number), at_s)
    return found


_LARGEST = 1.7e308


def _thin_for_band(points: CurveValues) -> CurveValues:
    """Return fewer points, enough for a band: so that a thousand runs fit into memory."""
    if len(points.steps) <= 4 * BAND_COLUMNS:
        return points
    few = thin_curve(points.steps, points.values, find_step_range([points.steps]), 2 * BAND_COLUMNS)
    kept = CurveValues()
    for step, value in zip(few.steps, few.values, strict=True):
        if value is not None:
            kept.add(step, value)
    return kept


def _build_metric_curves(
    key: str,
    chosen: dict[str, MetricPoints],
    others: Sequence[CurveValues],
    clocks: Mapping[str, RunClock | None],
    columns: int,
) -> MetricCurves:
    pieces = [series.live.steps for series in chosen.values()]
    pieces += [piece.steps for series in chosen.values() for piece in series.undone.values()]
    shown = find_step_range([*pieces, *(other.steps for other in others)])
    return MetricCurves(
        metric=key,
        runs=tuple(
            RunCurve(
                run=run,
                live=_thin_with_times(curve.live, shown, clocks[run], columns),
                undone=tuple(_thin_undone_pieces(curve, clocks[run], columns)),
                not_finite=curve.not_finite,
            )
            for run, curve in chosen.items()
        ),
        band=build_curve_band(
            [compute_column_means(other.steps, other.values, shown) for other in others], shown
        ),
    )


def _thin_undone_pieces(curve: MetricPoints, clock: RunClock | None, columns: int) -> Iterator[CurvePoints]:
    """Yield the pieces in their order: together they have as many columns as the curve.

    Each has a share by its length. Of very many pieces these are the longest ones.
    """
    found = [piece for _, piece in sorted(curve.undone.items())]
    most = columns // _LEAST_COLUMNS
    if len(found) > most:
        places = sorted(range(len(found)), key=lambda one: -len(found[one].steps))[:most]
        found = [found[place] for place in sorted(places)]
    total = sum(len(piece.steps) for piece in found)
    for piece in found:
        share = max(columns * len(piece.steps) // total, _LEAST_COLUMNS)
        yield _thin_with_times(piece, find_step_range([piece.steps]), clock, share)


def _thin_with_times(
    points: CurveValues, shown: StepRange, clock: RunClock | None, columns: int
) -> CurvePoints:
    """Return fewer points, with when each was logged if that is known of all of them."""
    found = thin_curve(points.steps, points.values, shown, columns)
    kept = choose_kept_point_indices(points.steps, points.values, shown, columns)
    moments = [points.at_s[place] for place in kept] if points.at_s else []
    if clock is None or not moments or any(map(math.isnan, moments)):
        return found
    return replace(
        found,
        wall_s=tuple(_round_seconds(clock.wall_s(moment)) for moment in moments),
        productive_s=tuple(_round_seconds(clock.productive_s(moment)) for moment in moments),
    )


_PRECISE_S = 1000.0


def _round_seconds(seconds: float) -> float:
    return round(seconds) if seconds >= _PRECISE_S else round(seconds, 2)
