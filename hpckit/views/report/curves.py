"""Reads the metrics of runs as curves: of a few runs each, of all the others as a band.

The rows of each run are read once; what is kept of a run is a few hundred points for each metric.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from hpckit.model.metrics.rows import RowPlace, each_value, number_of
from hpckit.model.run import RunView
from hpckit.record.launches import Launch
from hpckit.record.metrics.history import metric_history
from hpckit.report.document.model import MetricCurves, RunCurve
from hpckit.report.document.thinning import (
    BAND_COLUMNS,
    StepRange,
    band,
    column_means,
    step_range,
    thinned,
)

MOST_METRICS = 12


@dataclass(slots=True)
class _Points:
    """Values over steps."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: float, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)


@dataclass(slots=True)
class _Curve:
    """A metric of a run: what holds, and what was undone, by the round that logged it."""

    live: _Points = field(default_factory=_Points)
    undone: dict[RowPlace, _Points] = field(default_factory=dict)
    not_finite: int = 0


def read_curves(
    runs: Iterable[tuple[Launch, RunView]], highlighted: Collection[str], first: str | None
) -> tuple[tuple[MetricCurves, ...], int]:
    """Return the curves of each metric, and how many metrics were left out.

    `highlighted` are the ids of the runs that have a curve of their own, `first` the metric that
    comes first.
    """
    chosen: dict[str, dict[str, _Curve]] = {}
    others: dict[str, list[_Points]] = {}
    for launch, view in runs:
        own = view.record.id in highlighted
        for key, curve in _curves(launch, view.record.index, undone=own).items():
            if own:
                chosen.setdefault(key, {})[view.record.id] = curve
            elif len(curve.live.steps) > 1:
                others.setdefault(key, []).append(_coarse(curve.live))
    keys = [key for key in dict.fromkeys((*chosen, *others)) if _drawable(chosen, others, key)]
    keys.sort(key=lambda key: key != first)
    found = (_metric(key, chosen.get(key, {}), others.get(key, ())) for key in keys[:MOST_METRICS])
    return tuple(found), max(len(keys) - MOST_METRICS, 0)


def _drawable(
    chosen: dict[str, dict[str, _Curve]], others: dict[str, list[_Points]], key: str
) -> bool:
    return key in others or any(len(one.live.steps) > 1 for one in chosen.get(key, {}).values())


def _curves(launch: Launch, index: int, *, undone: bool) -> dict[str, _Curve]:
    """Return the curves of a run by metric: of numbers that have a step."""
    found: dict[str, _Curve] = {}
    for judged in metric_history(launch.paths.run(index)):
        for one in each_value(judged):
            number = number_of(one.value)
            if number is None or one.step is None or (one.undone and not undone):
                continue
            curve = found.setdefault(one.key, _Curve())
            if one.undone:
                curve.undone.setdefault(one.place, _Points()).add(one.step, float(number))
                continue
            curve.live.add(one.step, float(number))
            curve.not_finite += not -_LARGEST <= number <= _LARGEST
    return found


_LARGEST = 1.7e308


def _coarse(points: _Points) -> _Points:
    """Return fewer points, enough for a band: so that a thousand runs fit into memory."""
    if len(points.steps) <= 4 * BAND_COLUMNS:
        return points
    few = thinned(points.steps, points.values, step_range([points.steps]), 2 * BAND_COLUMNS)
    kept = _Points()
    for step, value in zip(few.steps, few.values, strict=True):
        if value is not None:
            kept.add(step, value)
    return kept


def _metric(key: str, chosen: dict[str, _Curve], others: Sequence[_Points]) -> MetricCurves:
    pieces = [one.live.steps for one in chosen.values()]
    pieces += [piece.steps for one in chosen.values() for piece in one.undone.values()]
    shown = step_range([*pieces, *(one.steps for one in others)])
    return MetricCurves(
        metric=key,
        runs=tuple(_run_curve(run, curve, shown) for run, curve in chosen.items()),
        band=band([column_means(one.steps, one.values, shown) for one in others], shown),
    )


def _run_curve(run: str, curve: _Curve, shown: StepRange) -> RunCurve:
    return RunCurve(
        run=run,
        live=thinned(curve.live.steps, curve.live.values, shown),
        undone=tuple(
            thinned(piece.steps, piece.values, shown) for _, piece in sorted(curve.undone.items())
        ),
        not_finite=curve.not_finite,
    )
