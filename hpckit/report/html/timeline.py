"""The third section: what runs did when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hpckit.model.counted import counted
from hpckit.model.goodput import Interruption, TimePart, TimeParts
from hpckit.report.account import span_text
from hpckit.report.document.model import ReportDocument, RunTimeline
from hpckit.report.document.words import PART_LABELS, summed_parts
from hpckit.report.html.charts import Chart, label
from hpckit.report.html.elements import Cell, Figure, Html, paragraph, table
from hpckit.report.html.section import Section, empty_section, section
from hpckit.report.rows import RunRow
from hpckit.report.text import percent

_COLOURS = {
    TimePart.productive: "#009e73",
    TimePart.checkpoint: "#56b4e9",
    TimePart.start: "#e69f00",
    TimePart.restart: "#d55e00",
    TimePart.lost: "#cc3f5c",
    TimePart.queue: "#a9a9a9",
    TimePart.idle: "#d0d0d0",
}
_PATTERNS = {TimePart.queue: "/", TimePart.lost: "x", TimePart.restart: "\\"}
"""So that no part is told by its colour alone."""

_LANE, _AROUND = 24, 120


def timeline_section(document: ReportDocument) -> Section:
    """Return a lane per run, and the account of each run's time."""
    rows = [row for row in document.rows if row.goodput is not None and row.goodput.parts.wall]
    if not rows:
        why = "No time line: no run was submitted or has begun."
        return empty_section("timeline", "Timeline", why)
    lanes = [one for one in document.timelines if one.spans]
    parts: list[Html | Chart] = []
    if lanes:
        parts.append(_chart(lanes, document.rows))
    left = len(rows) - len(lanes)
    if left > 0:
        remark = f"The lanes of {counted(left, 'run')} are not drawn; the table has all of them."
        parts.append(paragraph(remark, "remark"))
    parts.append(_parts_table(rows))
    note = (
        "The parts of a run add up to its wall time, from its first submission to its end. Saves "
        "that follow each other closely are drawn together."
    )
    return section("timeline", "Timeline", [*parts, paragraph(note, "remark")])


def _chart(lanes: Sequence[RunTimeline], rows: Sequence[RunRow]) -> Chart:
    traces = [trace for part in TimePart if (trace := _bars(part, lanes))]
    marks = _marks(lanes, rows)
    names = [label(one.run) for one in lanes]
    return Chart(
        id="chart-timeline",
        label="time line of the runs, a lane for each",
        height=_AROUND + _LANE * max(len(lanes), 2),
        traces=[*traces, *([marks] if marks else [])],
        layout={
            "barmode": "overlay",
            "bargap": 0.25,
            "hovermode": "closest",
            "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
            "xaxis": {"type": "date", "side": "bottom", "title": {"text": "UTC"}},
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": names,
                "autorange": "reversed",
                "automargin": True,
            },
        },
    )


def _bars(part: TimePart, lanes: Sequence[RunTimeline]) -> dict[str, Any] | None:
    found = [(one.run, span) for one in lanes for span in one.spans if span.part is part]
    if not found:
        return None
    words = [
        f"{PART_LABELS[part]} {span_text(span.end - span.begin)}, "
        + (f"attempt {span.attempt}" if span.attempt else "before the first attempt")
        + ("" if span.round is None else f", round {span.round}")
        for _, span in found
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": PART_LABELS[part],
        "y": [label(run) for run, _ in found],
        "base": [_moment(span.begin) for _, span in found],
        "x": [_milliseconds(span.end - span.begin) for _, span in found],
        "text": words,
        "textposition": "none",
        "hovertemplate": "%{y}<br>%{text}<br>from %{base}<extra></extra>",
        "marker": {
            "color": _COLOURS[part],
            "line": {"width": 0},
            "pattern": {"shape": _PATTERNS.get(part, ""), "size": 6, "solidity": 0.25},
        },
    }


def _marks(lanes: Sequence[RunTimeline], rows: Sequence[RunRow]) -> dict[str, Any] | None:
    """Return a mark for each interruption."""
    drawn = {one.run for one in lanes}
    found = [
        (row.run, one)
        for row in rows
        if row.run in drawn and row.goodput is not None
        for one in row.goodput.interruptions
    ]
    if not found:
        return None
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "interruption",
        "y": [label(run) for run, _ in found],
        "x": [_moment(one.at) for _, one in found],
        "text": [_words(one) for _, one in found],
        "hovertemplate": "%{y}<br>%{text}<br>%{x}<extra></extra>",
        "cliponaxis": False,
        "marker": {
            "symbol": "x",
            "size": 9,
            "color": ["#7f7f7f" if one.planned else "#b2182b" for _, one in found],
            "line": {"width": 1, "color": "#ffffff"},
        },
    }


def _words(one: Interruption) -> str:
    where = "" if one.rank is None else f" of rank {one.rank}"
    step = "" if one.step is None else f" at step {one.step}"
    message = one.message.strip().splitlines()[:1]
    return label(f"{one.cause}{where}{step}: {''.join(message)}", 90)


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _milliseconds(span: timedelta) -> float:
    return round(span.total_seconds() * 1000, 1)


def _parts_table(rows: Sequence[RunRow]) -> Html:
    accounts = [(row.run, row.goodput.parts) for row in rows if row.goodput is not None]
    whole = summed_parts(row.goodput for row in rows if row.goodput is not None)
    names = [name for name in PART_LABELS if getattr(whole, name)]
    header = ("run", *(PART_LABELS[name] for name in names), "wall")
    body = [(run, *_cells(parts, names)) for run, parts in accounts]
    foot = ("together", *_cells(whole, names)) if len(body) > 1 else None
    return table(header, body, label="parts of the wall time", foot=foot)


def _cells(parts: TimeParts, names: Sequence[str]) -> list[Cell]:
    spans = [getattr(parts, name) for name in names]
    return [
        *(
            Figure(
                f"{span_text(span)} ({percent(span / parts.wall)})" if span else "",
                span.total_seconds(),
            )
            for span in spans
        ),
        Figure(span_text(parts.wall), parts.wall.total_seconds()),
    ]
