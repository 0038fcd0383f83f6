"""The fourth section: metrics over steps, with what restarts have undone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpckit.model.counted import counted
from hpckit.report.document.figure import unit_name, unit_s
from hpckit.report.document.model import (
    CurvePoints,
    MetricCurves,
    ReportDocument,
    RunCurve,
)
from hpckit.report.document.run_clock import CurveAxis
from hpckit.report.document.words import short_name
from hpckit.report.html.charts import COLOURS, Chart, Section, label
from hpckit.report.overrides import common_words, override_cells
from hpckit.values import dataclass

_HEIGHT = 340
_BAND_TRACES = 3
"""Its edges, and the median."""


def curves_section(document: ReportDocument) -> Section:
    """Return a chart for each metric."""
    if not document.curves:
        why = "No curves: no metric has numbers at two steps of a run, or more."
        return Section(name="curves", title="Curves", why_empty=why)
    every = [one for metric in document.curves for one in metric.runs]
    sweep = [row.overrides for row in document.rows]
    cells = override_cells(sweep, common_words(sweep))
    words = {row.run: cell for row, cell in zip(document.rows, cells, strict=True)}
    styles = {
        run: _Style(
            label(f"{short_name(document, run)} {words.get(run, '')}".strip()),
            COLOURS[place % len(COLOURS)],
        )
        for place, run in enumerate(dict.fromkeys(one.run for one in every))
    }
    charts = [_chart(place, curves, styles) for place, curves in enumerate(document.curves)]
    values = {
        "undone": any(one.undone for one in every),
        "timed": any(one.live.wall_s for one in every),
        "band": any(metric.band for metric in document.curves),
        "metrics": [
            {
                "metric": curves.metric,
                "chart": chart,
                "not_finite": sum(one.not_finite for one in curves.runs),
            }
            for curves, chart in zip(document.curves, charts, strict=True)
        ],
        "left": document.metrics_left_out,
    }
    return Section(name="curves", title="Curves", values=values, charts=charts)


@dataclass(frozen=True, slots=True)
class _Style:
    """How a run is named and coloured in all charts."""

    name: str
    colour: str


def _chart(place: int, curves: MetricCurves, styles: Mapping[str, _Style]) -> Chart:
    many = len(curves.runs) > 1 or curves.band is not None
    timed = any(one.live.wall_s for one in curves.runs)
    return Chart(
        id=f"chart-curve-{place}",
        template="curve",
        height=_HEIGHT + (18 * len(curves.runs) if many else 0),
        values={
            "metric": label(curves.metric, 40),
            "many": many,
            "fixed_range": _flat_range(curves),
            "band": curves.band,
            "band_name": counted(curves.band.runs, "other run") if curves.band else "",
            "undone": [_undone(one, styles[one.run]) for one in curves.runs if one.undone],
            "live": [
                _line(styles[one.run], one.live.steps, one.live.values) for one in curves.runs
            ],
            "axes": [
                (axis.value, _axis_title(axis, curves), _other_x(axis, curves))
                for axis in (CurveAxis.wall, CurveAxis.productive)
                if timed
            ],
        },
    )


def _undone(one: RunCurve, style: _Style) -> Mapping[str, Any]:
    """Return all undone pieces as one line."""
    steps = _joined(piece.steps for piece in one.undone)
    return _line(style, steps, _joined(piece.values for piece in one.undone))


def _joined(pieces: Iterable[Sequence[float | None]]) -> list[float | None]:
    """Return the pieces one after the other, with a gap after each."""
    return [one for piece in pieces for one in (*piece, None)]


def _line(
    style: _Style, steps: Sequence[float | None], values: Sequence[float | None]
) -> Mapping[str, Any]:
    return {"name": style.name, "colour": style.colour, "x": steps, "y": values}


def _flat_range(curves: MetricCurves) -> tuple[float, float] | None:
    """Return a range around a curve that is constant: plotly's own is two units high."""
    pieces = [piece for one in curves.runs for piece in (one.live, *one.undone)]
    values = {value for piece in pieces for value in piece.values if value is not None}
    if curves.band is not None or len(values) != 1:
        return None
    (value,) = values
    room = abs(value) / 2 or 1.0
    return value - room, value + room


def _axis_title(axis: CurveAxis, curves: MetricCurves) -> str:
    return f"{axis.words} ({unit_name(_unit_s(curves))})"


def _unit_s(curves: MetricCurves) -> float:
    """Return the seconds of the unit of both axes of time."""
    return unit_s(max((one.live.wall_s[-1] for one in curves.runs if one.live.wall_s), default=0))


def _other_x(axis: CurveAxis, curves: MetricCurves) -> list[list[float | None] | None]:
    """Return where the points of each trace are on this axis, in the order of the traces.

    A band is one of steps. What was undone has no place in productive time.
    """
    unit = _unit_s(curves)
    found: list[list[float | None] | None] = [None] * (0 if curves.band is None else _BAND_TRACES)
    for one in curves.runs:
        pieces = [_times(axis, piece, unit) for piece in one.undone]
        if pieces and (axis is CurveAxis.productive or not all(pieces)):
            found.append(None)
        elif pieces:
            found.append(_joined(pieces))
    found += [_times(axis, one.live, unit) or None for one in curves.runs]
    return found


def _times(axis: CurveAxis, points: CurvePoints, unit: float) -> list[float | None]:
    seconds = points.wall_s if axis is CurveAxis.wall else points.productive_s
    return [float(f"{one / unit:.5g}") for one in seconds]
