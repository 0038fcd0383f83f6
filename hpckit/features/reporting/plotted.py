"""Reads the metrics of runs for a figure: as the report draws them, over any of its axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.reporting.curves import (
    CurveValues,
    MetricPoints,
    build_curve_band,
    choose_kept_point_indices,
    compute_column_means,
    find_step_range,
    read_metric_points,
    read_run_clock,
)
from hpckit.features.reporting.document import CurveBand
from hpckit.features.reporting.figure import (
    XY,
    CurveAxis,
    CurveFigure,
    FigureLine,
    FigurePanel,
    RunClock,
    choose_time_unit,
    smooth_values,
)
from hpckit.features.reporting.gather import build_results_best_first
from hpckit.model.run import RunView
from hpckit.record.launches import Launch
from hpckit.report.rows import build_run_row
from hpckit.report.selection import find_common_overrides, format_override_cells
from hpckit.values import dataclass, replace
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import Ask, LaunchView, build_launch_views, print_view_warnings

COLUMNS = 1200
"""A curve has at most two points in each of these: more than a printer shows in a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotQuestion:
    """What to plot; without `metrics` it is the one that the report draws first."""

    metrics: tuple[str, ...] = ()
    axis: CurveAxis = CurveAxis.step
    smooth: int = 1
    fresh: bool = False


class _Read(NamedTuple):
    """The values of a run, and its clock if the axis is one of time."""

    name: str
    points: Mapping[str, MetricPoints]
    clock: RunClock | None


def build_curve_figure(
    named: Sequence[tuple[Launch, Sequence[int] | None]], question: PlotQuestion, context: Context
) -> CurveFigure:
    """Return the figure of these launches' runs; raises UsageError if there is nothing to draw."""
    views = build_launch_views(named, context, ask=Ask.open_runs, freshness=Freshness(now=question.fresh))
    print_view_warnings(views, context)
    now = context.now()
    runs = [(view.launch, run) for view in views for run in view.runs]
    _, goal, own = build_results_best_first(views, [build_run_row(one) for _, one in runs], now)
    names = _choose_legend_names(views)
    timed = question.axis is not CurveAxis.step
    read = {
        view.record.id: _Read(
            name=names[view.record.id],
            points=read_metric_points(launch, view.record.index, whole=timed or view.record.id in own),
            clock=read_run_clock(launch, view, now) if timed else None,
        )
        for launch, view in runs
    }
    metrics = _choose_metrics(question, read, None if goal is None else goal.metric)
    found = [_build_panel(metric, read, own, question) for metric in metrics]
    return _build_figure_in_time_units(found, question.axis)


def _choose_legend_names(views: Sequence[LaunchView]) -> dict[str, str]:
    """Return what each run is called in the legend: the overrides in which it differs, if any."""
    runs: list[tuple[LaunchView, RunView]] = [(view, run) for view in views for run in view.runs]
    words = [one.record.overrides for _, one in runs]
    cells = format_override_cells(words, find_common_overrides(words))
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell] = counts.get(cell, 0) + 1
    return {
        one.record.id: cell if cell and counts[cell] == 1 else f"{one.record.id} {cell}".strip()
        for (_, one), cell in zip(runs, cells, strict=True)
    }


def _choose_metrics(question: PlotQuestion, read: Mapping[str, _Read], goal: str | None) -> tuple[str, ...]:
    """Return what to plot: of metrics with curves, in the order in which they were logged."""
    known = [
        key
        for key in dict.fromkeys(key for metrics in read.values() for key in metrics.points)
        if any(len(metrics.points[key].live.steps) > 1 for metrics in read.values() if key in metrics.points)
    ]
    for metric in question.metrics:
        if metric not in known:
            raise UsageError(
                f"--metric {metric}: no run has two values of that name",
                hint=f"there are {', '.join(known[:20]) or 'no curves at all'}",
            )
    if not known:
        raise UsageError(
            "no metric of these runs has numbers at two or more steps",
            hint="run.log(loss=...) inside of run.steps(...) writes them; `hpckit results` shows"
            " what there is",
        )
    return question.metrics or ((goal,) if goal in known else (known[0],))


def _build_panel(
    metric: str, read: Mapping[str, _Read], own: Iterable[str], question: PlotQuestion
) -> FigurePanel:
    chosen = {run: one for run, one in read.items() if run in set(own) and metric in one.points}
    others = [one for run, one in read.items() if run not in chosen and metric in one.points]
    colours = {run: place for place, run in enumerate(run for run in read if run in set(own))}
    lines = [_build_line(one, one.points[metric], colours[run], question) for run, one in chosen.items()]
    drawn = [line for line in lines if line.live[0]]
    return FigurePanel(
        metric=metric,
        lines=tuple(drawn),
        band=_build_band(
            [_convert_points_to_axis(other.points[metric].live, other.clock, question) for other in others]
        ),
    )


def _build_line(one: _Read, points: MetricPoints, colour: int, question: PlotQuestion) -> FigureLine:
    live = _convert_points_to_axis(points.live, one.clock, question)
    if len(live[0]) != len(points.live.steps):
        return FigureLine(name=one.name, colour=colour, live=((), ()))
    undone = (
        ()
        if question.axis is CurveAxis.productive
        else tuple(
            _thin_points(_convert_points_to_axis(piece, one.clock, question))
            for _, piece in sorted(points.undone.items())
        )
    )
    return FigureLine(
        name=one.name,
        colour=colour,
        live=_thin_points(live),
        undone=tuple(piece for piece in undone if piece[0]),
        restarts=(
            tuple(live[0][place] for place in points.restarts),
            tuple(live[1][place] for place in points.restarts),
        ),
    )


def _convert_points_to_axis(points: CurveValues, clock: RunClock | None, question: PlotQuestion) -> XY:
    """Return the points over the axis; empty if the times of some are not known."""
    values = tuple(
        value if math.isfinite(value) else math.nan for value in smooth_values(points.values, question.smooth)
    )
    if question.axis is CurveAxis.step:
        return tuple(points.steps), values
    if clock is None or len(points.at_s) != len(values) or any(map(math.isnan, points.at_s)):
        return (), ()
    of = clock.wall_s if question.axis is CurveAxis.wall else clock.productive_s
    return tuple(map(of, points.at_s)), values


def _thin_points(points: XY) -> XY:
    x, values = points
    if not x:
        return points
    kept = choose_kept_point_indices(x, values, find_step_range([x]), COLUMNS)
    return tuple(x[place] for place in kept), tuple(values[place] for place in kept)


def _build_band(curves: Sequence[XY]) -> CurveBand | None:
    some = [curve for curve in curves if len(curve[0]) > 1]
    if not some:
        return None
    shown = find_step_range([x for x, _ in some])
    return build_curve_band([compute_column_means(x, values, shown) for x, values in some], shown)


def _build_figure_in_time_units(panels: Sequence[FigurePanel], axis: CurveAxis) -> CurveFigure:
    """Return the figure, its times in seconds, minutes or hours; raises UsageError without any."""
    ends = [max(line.live[0]) for panel in panels for line in panel.lines]
    if not ends:
        raise UsageError(f"--x {axis}: the times of the values of these runs are not known", hint="--x step")
    unit = 1.0 if axis is CurveAxis.step else choose_time_unit(max(ends))
    return CurveFigure(
        panels=tuple(_divide_times_by_unit(panel, unit) for panel in panels), axis=axis, unit_s=unit
    )


def _divide_times_by_unit(panel: FigurePanel, unit: float) -> FigurePanel:
    def parts(points: XY) -> XY:
        return tuple(x / unit for x in points[0]), points[1]

    lines = tuple(
        replace(
            line, live=parts(line.live), undone=tuple(map(parts, line.undone)), restarts=parts(line.restarts)
        )
        for line in panel.lines
    )
    band_ = panel.band
    if band_ is not None:
        band_ = replace(band_, steps=tuple(x / unit for x in band_.steps))
    return replace(panel, lines=lines, band=band_)
