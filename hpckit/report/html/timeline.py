"""The third section: what runs did when. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hpckit.model.goodput import Interruption, TimePart, TimeParts
from hpckit.report.account import PART_LABELS, span_text
from hpckit.report.document.model import ReportDocument, RunTimeline
from hpckit.report.document.words import short_name, summed_parts
from hpckit.report.html.charts import Chart, Section, label
from hpckit.report.html.tables import Cell, Figure, Table, duration, table
from hpckit.report.rows import RunRow
from hpckit.report.text import percent

_COLOURS = {
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


def timeline_section(document: ReportDocument) -> Section:
    """Return a lane per run, and the account of each run's time."""
    rows = [row for row in document.rows if row.goodput is not None and row.goodput.parts.wall]
    if not rows:
        why = "No time line: no run was submitted or has begun."
        return Section(name="timeline", title="Timeline", why_empty=why)
    lanes = [one for one in document.timelines if one.spans]
    drawn = {span.part for one in lanes for span in one.spans}
    chart = _chart(lanes, document) if lanes else None
    values = {
        "legend": [
            (PART_LABELS[part], _COLOURS[part], _PATTERNS.get(part, ""))
            for part in TimePart
            if part in drawn
        ],
        "chart": chart,
        "left": len(rows) - len(lanes),
        "parts": _parts_table(rows, document),
    }
    charts = () if chart is None else (chart,)
    return Section(name="timeline", title="Timeline", values=values, charts=charts)


def _chart(lanes: Sequence[RunTimeline], document: ReportDocument) -> Chart:
    names = {one.run: label(short_name(document, one.run)) for one in lanes}
    return Chart(
        id="chart-timeline",
        template="timeline",
        height=_AROUND + min(_LANE * max(len(lanes), 2), max(_MOST_HIGH, 9 * len(lanes))),
        values={
            "names": list(names.values()),
            "parts": [bars for part in TimePart if (bars := _bars(part, lanes, names))],
            "marks": _marks(names, document.rows),
        },
    )


def _bars(
    part: TimePart, lanes: Sequence[RunTimeline], names: Mapping[str, str]
) -> Mapping[str, Any] | None:
    found = [(one.run, span) for one in lanes for span in one.spans if span.part is part]
    if not found:
        return None
    return {
        "name": PART_LABELS[part],
        "colour": _COLOURS[part],
        "pattern": _PATTERNS.get(part, ""),
        "runs": [names[run] for run, _ in found],
        "begins": [_moment(span.begin) for _, span in found],
        "lengths": [_milliseconds(span.end - span.begin) for _, span in found],
        "words": [
            f"{PART_LABELS[part]} {span_text(span.end - span.begin)}, "
            + (f"attempt {span.attempt}" if span.attempt else "before the first attempt")
            + ("" if span.round is None else f", round {span.round}")
            for _, span in found
        ],
    }


def _marks(names: Mapping[str, str], rows: Sequence[RunRow]) -> Mapping[str, Any]:
    """Return a mark for each interruption."""
    found = [
        (row.run, one)
        for row in rows
        if row.run in names and row.goodput is not None
        for one in row.goodput.interruptions
    ]
    return {
        "runs": [names[run] for run, _ in found],
        "times": [_moment(one.at) for _, one in found],
        "words": [_words(one) for _, one in found],
        "colours": ["#7f7f7f" if one.planned else "#b2182b" for _, one in found],
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


def _parts_table(rows: Sequence[RunRow], document: ReportDocument) -> Table:
    accounts = [
        (short_name(document, row.run), row.goodput.parts)
        for row in rows
        if row.goodput is not None
    ]
    whole = summed_parts(row.goodput for row in rows if row.goodput is not None)
    names = [name for name in PART_LABELS if getattr(whole, name)]
    header = ("run", *(PART_LABELS[name] for name in names), "wall")
    body = [(run, *_cells(parts, names)) for run, parts in accounts]
    return table(header, body, ("sum of all runs", *_cells(whole, names)) if len(body) > 1 else ())


def _cells(parts: TimeParts, names: Sequence[str]) -> list[Cell]:
    spans = [getattr(parts, name) for name in names]
    shares = [
        Figure(
            f"{span_text(span)} ({percent(span / parts.wall)})" if span else "",
            span.total_seconds(),
        )
        for span in spans
    ]
    return [*shares, duration(parts.wall)]
