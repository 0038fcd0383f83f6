"""What sections of the page are made of: charts, and tables with cells that sort. Pure.

It imports no plotly, which takes the values of charts. Plotly reads some markup in texts, so texts
of users pass `label`. Colours of text and lines are the page's.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import compress
from typing import Any

from hpckit.report.account import format_short_duration
from hpckit.report.escape import escape_table_cell, shorten_text
from hpckit.report.text import format_number, format_share_percent
from hpckit.values import dataclass, field

LABEL_WIDTH = 48

COLOURS = (
    *("#1f83c4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#8c6bb1", "#b8860b", "#5d8a2b", "#bc5090", "#2f9e8f", "#a05d56"),
)
"""Okabe and Ito's, without black and yellow, and six more: readable on light and dark paper. None
is grey: that is the median of the others."""

VIRIDIS = (*("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: where on the page, how high, and what its template of `templates/charts` gets."""

    id: str
    template: str
    height: int
    values: Mapping[str, Any]


def escape_plot_label(text: str, width: int = LABEL_WIDTH) -> str:
    """Return a text that plotly shows as it is, on one line."""
    return html.escape(shorten_text(escape_table_cell(text), width), quote=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section; the template of its name gets `values`. `why_empty` stands in place of it."""

    name: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    why_empty: str = ""


MOST_ROWS = 2000
"""Longer tables are cut, with a remark."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A cell that shows a text and sorts by a number."""

    text: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Badge:
    """A cell that shows a text in the colours of a state."""

    text: str
    state: str


Cell = str | Figure | Badge | float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as its template draws it: names of columns, and whether they have numbers.

    `left` counts the rows that are not shown.
    """

    header: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str | Figure | Badge]]
    foot: Sequence[str | Figure | Badge]
    left: int


def build_table(header: Sequence[str], rows: Sequence[Sequence[Cell]], foot: Sequence[Cell] = ()) -> Table:
    """Return a table. Columns in which no row has anything are left out."""
    lines = [[_build_shown_cell(cell) for cell in row] for row in rows]
    columns = list(zip(*lines, strict=True))
    kept = [any(cell if isinstance(cell, str) else cell.text for cell in column) for column in columns]
    numeric = [any(isinstance(cell, Figure) for cell in column) for column in columns]
    return Table(
        header=list(compress(zip(header, numeric, strict=False), kept)),
        rows=[list(compress(line, kept)) for line in lines[:MOST_ROWS]],
        foot=list(compress(map(_build_shown_cell, foot), kept)),
        left=max(len(rows) - MOST_ROWS, 0),
    )


def _build_shown_cell(cell: Cell) -> str | Figure | Badge:
    if isinstance(cell, str | Figure | Badge):
        return cell
    if isinstance(cell, bool) or cell is None:
        return "" if cell is None else str(cell)
    return Figure(format_number(cell), cell)


def build_share_cell(value: float | None) -> Figure:
    """Return a share as a cell, in percent."""
    return Figure(format_share_percent(value), value)


def build_duration_cell(span: timedelta | None) -> Figure:
    """Return a span of time as a cell; empty if there is none."""
    return Figure("", None) if span is None else Figure(format_short_duration(span), span.total_seconds())


def build_value_cell(value: Any) -> Cell:
    """Return a value of a configuration or a metric as a cell; numbers written as text sort."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    text = value if isinstance(value, str) else str(value)
    try:
        return Figure(text, float(text))
    except ValueError:
        return text
