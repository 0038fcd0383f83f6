"""The fourth section: metrics over steps, with what restarts have undone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpckit.model.counted import counted
from hpckit.report.document.figure import unit_name, unit_s
from hpckit.report.document.model import (
    CurveBand,
    CurvePoints,
    MetricCurves,
    ReportDocument,
    RunCurve,
)
from hpckit.report.document.run_clock import CurveAxis
from hpckit.report.document.words import short_name
from hpckit.report.html.charts import COLOURS, Chart, label, line
from hpckit.report.html.elements import Html, element, paragraph
from hpckit.report.html.section import Section, empty_section, section

_HEIGHT = 340
_BAND_TRACES = 3
"""Its edges, and the median."""
_BAND = "rgba(127,127,127,0.25)"


def curves_section(document: ReportDocument) -> Section:
    """Return a chart for each metric."""
    if not document.curves:
        why = "No curves: no metric has numbers at two steps of a run, or more."
        return empty_section("curves", "Curves", why)
    parts: list[Html | Chart] = [_legend(document)]
    if any(one.live.wall_s for metric in document.curves for one in metric.runs):
        parts.append(element("p", id="curve-axis", class_="choice", hidden=""))
    runs = list(dict.fromkeys(one.run for metric in document.curves for one in metric.runs))
    styles = {
        run: _Style(label(short_name(document, run)), COLOURS[place % len(COLOURS)])
        for place, run in enumerate(runs)
    }
    for place, curves in enumerate(document.curves):
        parts += [element("h3", curves.metric), _chart(place, curves, styles)]
        broken = sum(one.not_finite for one in curves.runs)
        if broken:
            words = (
                f"{counted(broken, 'value')} of these curves not finite (NaN or infinite): gaps."
            )
            parts.append(paragraph(words, "remark"))
    if document.metrics_left_out:
        more = f"{counted(document.metrics_left_out, 'more metric')} not drawn; "
        parts.append(paragraph(f"{more}`hpckit export csv` has all values.", "remark"))
    return section("curves", "Curves", parts)


@dataclass(frozen=True, slots=True)
class _Style:
    """How a run is named and coloured in all charts."""

    name: str
    colour: str


def _legend(document: ReportDocument) -> Html:
    words = "Solid lines hold."
    if any(one.undone for metric in document.curves for one in metric.runs):
        words += " Faint dotted lines are steps that a restart has undone."
    if any(one.live.wall_s for metric in document.curves for one in metric.runs):
        words += (
            " Wall time begins with the first attempt; productive time leaves out start-up, saves, "
            "restarts and repeated steps."
        )
    if any(metric.band for metric in document.curves):
        words += (
            " The grey band has four fifths of the other runs, from the lowest tenth to the "
            "highest; the grey line is their median. It is one of steps."
        )
    return paragraph(words, "remark")


def _chart(place: int, curves: MetricCurves, styles: Mapping[str, _Style]) -> Chart:
    traces: list[dict[str, Any]] = []
    if curves.band is not None:
        traces += _band(curves.band)
    for one in curves.runs:
        traces += _undone(one, styles[one.run])
    traces += [_live(one, styles[one.run]) for one in curves.runs]
    axes = {
        axis.value: {"title": _axis_title(axis, curves), "x": _other_x(axis, curves)}
        for axis in (CurveAxis.wall, CurveAxis.productive)
        if any(one.live.wall_s for one in curves.runs)
    }
    many = len(curves.runs) > 1 or curves.band is not None
    return Chart(
        id=f"chart-curve-{place}",
        label=f"{curves.metric} over steps",
        height=_HEIGHT + (18 * len(curves.runs) if many else 0),
        traces=traces,
        layout={
            "showlegend": many,
            "legend": {
                "orientation": "h",
                "traceorder": "normal",
                "y": -0.2,
                "yanchor": "top",
                "x": 0,
            },
            "xaxis": {"title": {"text": "step"}},
            "yaxis": {
                "title": {"text": label(curves.metric, 40)},
                "automargin": True,
                **_flat_range(curves),
            },
        },
        axes=axes,
    )


def _flat_range(curves: MetricCurves) -> dict[str, Any]:
    """Return a range around a curve that is constant: plotly's own is two units high."""
    pieces = [piece for one in curves.runs for piece in (one.live, *one.undone)]
    values = {value for piece in pieces for value in piece.values if value is not None}
    if curves.band is not None or len(values) != 1:
        return {}
    (value,) = values
    room = abs(value) / 2 or 1.0
    return {"range": [value - room, value + room]}


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
            found.append([x for piece in pieces for x in (*piece, None)])
    found += [_times(axis, one.live, unit) or None for one in curves.runs]
    return found


def _times(axis: CurveAxis, points: CurvePoints, unit: float) -> list[float | None]:
    seconds = points.wall_s if axis is CurveAxis.wall else points.productive_s
    return [float(f"{one / unit:.5g}") for one in seconds]


def _live(one: RunCurve, style: _Style) -> dict[str, Any]:
    alone = len(one.live.steps) == 1
    return line(
        style.name,
        one.live.steps,
        one.live.values,
        style.colour,
        mode="markers" if alone else "lines",
        hovertemplate="%{y:.5g} at %{x}",
    )


def _undone(one: RunCurve, style: _Style) -> list[dict[str, Any]]:
    """Return all undone pieces as one faint trace, with gaps between them."""
    if not one.undone:
        return []
    steps: list[float | None] = []
    values: list[float | None] = []
    for piece in one.undone:
        steps += [*piece.steps, None]
        values += [*piece.values, None]
    return [
        line(
            f"{style.name}, undone",
            steps,
            values,
            style.colour,
            line={"color": style.colour, "width": 1.4, "dash": "dot"},
            opacity=0.7,
            showlegend=False,
            hovertemplate="%{y:.5g} at %{x}<extra>undone</extra>",
        )
    ]


def _band(found: CurveBand) -> list[dict[str, Any]]:
    name = f"{counted(found.runs, 'other run')}"
    edge = {"color": _BAND, "width": 0}
    return [
        line(name, found.steps, found.low, _BAND, line=edge, showlegend=False, hoverinfo="skip"),
        line(
            name,
            found.steps,
            found.high,
            _BAND,
            line=edge,
            fill="tonexty",
            fillcolor=_BAND,
            hoverinfo="skip",
        ),
        line("their median", found.steps, found.middle, "#7f7f7f"),
    ]
