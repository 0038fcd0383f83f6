"""The third and the fourth section: what runs did when, and their metrics over steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hpckit.features.reporting.document import (
    CurvePoints,
    MetricCurves,
    ReportDocument,
    RunTimeline,
    list_interruptions,
    shorten_run_name,
)
from hpckit.features.reporting.figure import CurveAxis, choose_time_unit, name_time_unit
from hpckit.features.reporting.page_parts import (
    COLOURS,
    Cell,
    Chart,
    Figure,
    Section,
    Table,
    build_duration_cell,
    build_table,
    escape_plot_label,
)
from hpckit.model.counted import format_count
from hpckit.model.goodput import Interruption, TimePart, TimeParts
from hpckit.report.account import PART_LABELS, format_short_duration, sum_time_parts
from hpckit.report.rows import RunRow
from hpckit.report.selection import find_common_overrides, format_override_cells
from hpckit.report.text import format_share_percent

_PART_COLOURS = {
    TimePart.productive: "#009e73",
    TimePart.checkpoint: "#56b4e9",
    TimePart.start: "#e69f00",
    TimePart.restart: "#d55e00",
    TimePart.lost: "#cc3f5c",
    TimePart.suspended: "#7b6fa6",
    TimePart.queue: "#a9a9a9",
    TimePart.idle: "#d0d0d0",
}
_PATTERNS = {TimePart.queue: "/", TimePart.lost: "x", TimePart.restart: "\\"}
"""So that no part is told by its colour alone."""

_LANE, _AROUND, _MOST_HIGH = 24, 96, 960


def build_timeline_section(document: ReportDocument) -> Section:
    """Return a lane per run, and the account of each run's time."""
    rows = [row for row in document.rows if row.goodput is not None and row.goodput.parts.wall]
    if not rows:
        why = "No time line: no run was submitted or has begun."
        return Section(name="timeline", title="Timeline", why_empty=why)
    lanes = [timeline for timeline in document.timelines if timeline.spans]
    drawn = {span.part for lane in lanes for span in lane.spans}
    chart = _build_timeline_chart(lanes, document) if lanes else None
    values = {
        "legend": [
            (PART_LABELS[part], _PART_COLOURS[part], _PATTERNS.get(part, ""))
            for part in TimePart
            if part in drawn
        ],
        "chart": chart,
        "left": len(rows) - len(lanes),
        "parts": _build_time_parts_table(rows, document),
    }
    charts = () if chart is None else (chart,)
    return Section(name="timeline", title="Timeline", values=values, charts=charts)


def _build_timeline_chart(lanes: Sequence[RunTimeline], document: ReportDocument) -> Chart:
    names = {lane.run: escape_plot_label(shorten_run_name(document, lane.run)) for lane in lanes}
    return Chart(
        id="chart-timeline",
        template="timeline",
        height=_AROUND + min(_LANE * max(len(lanes), 2), max(_MOST_HIGH, 9 * len(lanes))),
        values={
            "names": list(names.values()),
            "parts": [
                bars for part in TimePart if (bars := _build_timeline_bars_of_part(part, lanes, names))
            ],
            "marks": _build_interruption_marks(names, document.rows),
        },
    )


def _build_timeline_bars_of_part(
    part: TimePart, lanes: Sequence[RunTimeline], names: Mapping[str, str]
) -> Mapping[str, Any] | None:
    found = [(lane.run, span) for lane in lanes for span in lane.spans if span.part is part]
    if not found:
        return None
    return {
        "name": PART_LABELS[part],
        "colour": _PART_COLOURS[part],
        "pattern": _PATTERNS.get(part, ""),
        "runs": [names[run] for run, _ in found],
        "begins": [_format_utc_moment(span.begin) for _, span in found],
        "lengths": [round((span.end - span.begin).total_seconds() * 1000, 1) for _, span in found],
        "words": [
            f"{PART_LABELS[part]} {format_short_duration(span.end - span.begin)}, "
            + (f"attempt {span.attempt}" if span.attempt else "before the first attempt")
            + ("" if span.round is None else f", round {span.round}")
            for _, span in found
        ],
    }


def _build_interruption_marks(names: Mapping[str, str], rows: Sequence[RunRow]) -> Mapping[str, Any]:
    found = [(row.run, one) for row, one in list_interruptions(rows) if row.run in names]
    return {
        "runs": [names[run] for run, _ in found],
        "times": [_format_utc_moment(one.at) for _, one in found],
        "words": [_describe_interruption(one) for _, one in found],
        "colours": ["#7f7f7f" if one.planned else "#b2182b" for _, one in found],
    }


def _describe_interruption(one: Interruption) -> str:
    where = "" if one.rank is None else f" of rank {one.rank}"
    step = "" if one.step is None else f" at step {one.step}"
    message = one.message.strip().splitlines()[:1]
    return escape_plot_label(f"{one.cause}{where}{step}: {''.join(message)}", 90)


def _format_utc_moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _build_time_parts_table(rows: Sequence[RunRow], document: ReportDocument) -> Table:
    accounts = [
        (shorten_run_name(document, row.run), row.goodput.parts) for row in rows if row.goodput is not None
    ]
    whole = sum_time_parts(row.goodput for row in rows if row.goodput is not None)
    names = [name for name in PART_LABELS if getattr(whole, name)]
    header = ("run", *(PART_LABELS[name] for name in names), "wall")
    body = [(run, *_build_time_part_cells(parts, names)) for run, parts in accounts]
    return build_table(
        header, body, ("sum of all runs", *_build_time_part_cells(whole, names)) if len(body) > 1 else ()
    )


def _build_time_part_cells(parts: TimeParts, names: Sequence[str]) -> list[Cell]:
    spans = [getattr(parts, name) for name in names]
    shares = [
        Figure(
            f"{format_short_duration(span)} ({format_share_percent(span / parts.wall)})" if span else "",
            span.total_seconds(),
        )
        for span in spans
    ]
    return [*shares, build_duration_cell(parts.wall)]


_HEIGHT = 340
_BAND_TRACES = 3
"""Its edges, and the median."""


def build_curves_section(document: ReportDocument) -> Section:
    """Return a chart for each metric."""
    if not document.curves:
        why = "No curves: no metric has numbers at two steps of a run, or more."
        return Section(name="curves", title="Curves", why_empty=why)
    every = [run for metric in document.curves for run in metric.runs]
    sweep = [row.overrides for row in document.rows]
    cells = format_override_cells(sweep, find_common_overrides(sweep))
    words = {row.run: cell for row, cell in zip(document.rows, cells, strict=True)}
    styles = {
        run: _Style(
            escape_plot_label(f"{shorten_run_name(document, run)} {words.get(run, '')}".strip()),
            COLOURS[place % len(COLOURS)],
        )
        for place, run in enumerate(dict.fromkeys(curve.run for curve in every))
    }
    charts = [_build_curve_chart(place, curves, styles) for place, curves in enumerate(document.curves)]
    values = {
        "undone": any(curve.undone for curve in every),
        "timed": any(curve.live.wall_s for curve in every),
        "band": any(metric.band for metric in document.curves),
        "metrics": [
            {
                "metric": curves.metric,
                "chart": chart,
                "not_finite": sum(run.not_finite for run in curves.runs),
            }
            for curves, chart in zip(document.curves, charts, strict=True)
        ],
        "left": document.metrics_left_out,
    }
    return Section(name="curves", title="Curves", values=values, charts=charts)


class _Style(NamedTuple):
    """How a run is named and coloured in all charts."""

    name: str
    colour: str


def _build_curve_chart(place: int, curves: MetricCurves, styles: Mapping[str, _Style]) -> Chart:
    many = len(curves.runs) > 1 or curves.band is not None
    ends = [run.live.wall_s[-1] for run in curves.runs if run.live.wall_s]
    unit = choose_time_unit(max(ends, default=0))  # of both axes of time
    return Chart(
        id=f"chart-curve-{place}",
        template="curve",
        height=_HEIGHT + (18 * len(curves.runs) if many else 0),
        values={
            "metric": escape_plot_label(curves.metric, 40),
            "many": many,
            "fixed_range": _choose_range_of_flat_curve(curves),
            "band": curves.band,
            "band_name": format_count(curves.band.runs, "other run") if curves.band else "",
            # All undone pieces are one line.
            "undone": [
                _build_plotly_curve(
                    styles[run.run],
                    _join_with_gaps(piece.steps for piece in run.undone),
                    _join_with_gaps(piece.values for piece in run.undone),
                )
                for run in curves.runs
                if run.undone
            ],
            "live": [
                _build_plotly_curve(styles[run.run], run.live.steps, run.live.values) for run in curves.runs
            ],
            "axes": [
                (
                    axis.value,
                    f"{axis.axis_label} ({name_time_unit(unit)})",
                    _list_curve_times_on_axis(axis, curves, unit),
                )
                for axis in (CurveAxis.wall, CurveAxis.productive)
                if ends
            ],
        },
    )


def _join_with_gaps(pieces: Iterable[Sequence[float | None]]) -> list[float | None]:
    return [one for piece in pieces for one in (*piece, None)]


def _build_plotly_curve(
    style: _Style, steps: Sequence[float | None], values: Sequence[float | None]
) -> Mapping[str, Any]:
    return {"name": style.name, "colour": style.colour, "x": steps, "y": values}


def _choose_range_of_flat_curve(curves: MetricCurves) -> tuple[float, float] | None:
    """Return a range around a curve that is constant: plotly's own is two units high."""
    pieces = [piece for run in curves.runs for piece in (run.live, *run.undone)]
    values = {value for piece in pieces for value in piece.values if value is not None}
    if curves.band is not None or len(values) != 1:
        return None
    (value,) = values
    room = abs(value) / 2 or 1.0
    return value - room, value + room


def _list_curve_times_on_axis(
    axis: CurveAxis, curves: MetricCurves, unit: float
) -> list[list[float | None] | None]:
    """Return where the points of each trace are on this axis, in the order of the traces.

    A band is one of steps. What was undone has no place in productive time.
    """
    found: list[list[float | None] | None] = [None] * (0 if curves.band is None else _BAND_TRACES)
    for run in curves.runs:
        pieces = [_convert_times_to_unit(axis, piece, unit) for piece in run.undone]
        if pieces and (axis is CurveAxis.productive or not all(pieces)):
            found.append(None)
        elif pieces:
            found.append(_join_with_gaps(pieces))
    found += [_convert_times_to_unit(axis, run.live, unit) or None for run in curves.runs]
    return found


def _convert_times_to_unit(axis: CurveAxis, points: CurvePoints, unit: float) -> list[float | None]:
    seconds = points.wall_s if axis is CurveAxis.wall else points.productive_s
    return [float(f"{second / unit:.5g}") for second in seconds]
