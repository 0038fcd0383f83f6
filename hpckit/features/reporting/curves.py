"""Reads the metrics of runs as curves: of a few runs each, of all the others as a band.

The rows of each run are read once; what is kept of a run is a few hundred points for each metric.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from hpckit.features.reporting.document import CurvePoints, MetricCurves, RunCurve
from hpckit.features.reporting.figure import RunClock, moment_s, run_clock
from hpckit.features.reporting.thinning import (
    BAND_COLUMNS,
    COLUMNS,
    StepRange,
    band,
    column_means,
    kept_places,
    step_range,
    thinned,
)
from hpckit.model.metrics.rows import MetricValue, RowPlace, each_value, number_of
from hpckit.model.run import RunView
from hpckit.record.launches import Launch
from hpckit.record.metrics.history import metric_history
from hpckit.values import dataclass, field, replace
from hpckit.views.accounts import run_spans

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
        assert one.step is not None  # noqa: S101  # the caller's promise
        points = self.undone.setdefault(one.place, CurveValues()) if one.undone else self.live
        if not one.undone:
            if self._place not in {None, one.place} or (self._place is None and self.undone):
                self.restarts.append(len(points.steps))
            self._place = one.place
            self.not_finite += not -_LARGEST <= number <= _LARGEST
        points.add(one.step, number)
        if at_s is not None:
            points.at_s.append(at_s)


def read_curves(
    runs: Iterable[tuple[Launch, RunView]],
    highlighted: Collection[str],
    first: str | None,
    now: datetime,
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
            clocks[view.record.id] = clock_of(launch, view, now)
        for key, curve in metric_points(launch, view.record.index, whole=own).items():
            if own:
                chosen.setdefault(key, {})[view.record.id] = curve
            elif len(curve.live.steps) > 1:
                others.setdefault(key, []).append(_coarse(curve.live))
    keys = [key for key in dict.fromkeys((*chosen, *others)) if _drawable(chosen, others, key)]
    keys.sort(key=lambda key: key != first)
    shown = keys[:MOST_METRICS]
    columns = _columns(sum(len(chosen.get(key, ())) for key in shown))
    found = (
        _metric(key, chosen.get(key, {}), others.get(key, ()), clocks, columns) for key in shown
    )
    return tuple(found), max(len(keys) - MOST_METRICS, 0)


def _columns(curves: int) -> int:
    """Return how many columns each of these curves may have: together a part of a report's size."""
    return min(max(_MOST_COLUMNS // max(curves, 1), BAND_COLUMNS), COLUMNS)


def _drawable(
    chosen: dict[str, dict[str, MetricPoints]], others: dict[str, list[CurveValues]], key: str
) -> bool:
    return key in others or any(len(one.live.steps) > 1 for one in chosen.get(key, {}).values())


def clock_of(launch: Launch, view: RunView, now: datetime) -> RunClock | None:
    """Return the clock of a run; None if it never began."""
    return run_clock(run_spans(launch, [view], now)[view.record.index])


def metric_points(launch: Launch, index: int, *, whole: bool) -> dict[str, MetricPoints]:
    """Return the values of a run by metric: numbers that have a step.

    The `whole` of it is with times, and with what was undone.
    """
    found: dict[str, MetricPoints] = {}
    for judged in metric_history(launch.paths.run(index)):
        at_s = (moment_s(judged.row.at) or math.nan) if whole else None
        for one in each_value(judged):
            number = number_of(one.value)
            if number is None or one.step is None or (one.undone and not whole):
                continue
            found.setdefault(one.key, MetricPoints()).add(one, float(number), at_s)
    return found


_LARGEST = 1.7e308


def _coarse(points: CurveValues) -> CurveValues:
    """Return fewer points, enough for a band: so that a thousand runs fit into memory."""
    if len(points.steps) <= 4 * BAND_COLUMNS:
        return points
    few = thinned(points.steps, points.values, step_range([points.steps]), 2 * BAND_COLUMNS)
    kept = CurveValues()
    for step, value in zip(few.steps, few.values, strict=True):
        if value is not None:
            kept.add(step, value)
    return kept


def _metric(
    key: str,
    chosen: dict[str, MetricPoints],
    others: Sequence[CurveValues],
    clocks: Mapping[str, RunClock | None],
    columns: int,
) -> MetricCurves:
    pieces = [one.live.steps for one in chosen.values()]
    pieces += [piece.steps for one in chosen.values() for piece in one.undone.values()]
    shown = step_range([*pieces, *(one.steps for one in others)])
    return MetricCurves(
        metric=key,
        runs=tuple(
            _run_curve(run, curve, shown, clocks[run], columns) for run, curve in chosen.items()
        ),
        band=band([column_means(one.steps, one.values, shown) for one in others], shown),
    )


def _run_curve(
    run: str, curve: MetricPoints, shown: StepRange, clock: RunClock | None, columns: int
) -> RunCurve:
    return RunCurve(
        run=run,
        live=_timed(curve.live, shown, clock, columns),
        undone=tuple(_undone(curve, clock, columns)),
        not_finite=curve.not_finite,
    )


def _undone(curve: MetricPoints, clock: RunClock | None, columns: int) -> Iterator[CurvePoints]:
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
        yield _timed(piece, step_range([piece.steps]), clock, share)


def _timed(
    points: CurveValues, shown: StepRange, clock: RunClock | None, columns: int
) -> CurvePoints:
    """Return fewer points, with when each was logged if that is known of all of them."""
    found = thinned(points.steps, points.values, shown, columns)
    kept = kept_places(points.steps, points.values, shown, columns)
    moments = [points.at_s[place] for place in kept] if points.at_s else []
    if clock is None or not moments or any(map(math.isnan, moments)):
        return found
    return replace(
        found,
        wall_s=tuple(_second(clock.wall_s(one)) for one in moments),
        productive_s=tuple(_second(clock.productive_s(one)) for one in moments),
    )


_PRECISE_S = 1000.0


def _second(seconds: float) -> float:
    """Return seconds with as many digits as anybody sees in a chart."""
    return round(seconds) if seconds >= _PRECISE_S else round(seconds, 2)
