"""Tables: which columns have something to say, and how cells look and sort. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import compress
from typing import Any

from hpckit.report.account import span_text
from hpckit.report.text import number, percent
from hpckit.values import dataclass

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


def table(
    header: Sequence[str], rows: Sequence[Sequence[Cell]], foot: Sequence[Cell] = ()
) -> Table:
    """Return a table. Columns in which no row has anything are left out."""
    lines = [[_drawn(cell) for cell in row] for row in rows]
    columns = list(zip(*lines, strict=True))
    kept = [any(map(_says, column)) for column in columns]
    numeric = [any(isinstance(cell, Figure) for cell in column) for column in columns]
    return Table(
        header=list(compress(zip(header, numeric, strict=False), kept)),
        rows=[list(compress(line, kept)) for line in lines[:MOST_ROWS]],
        foot=list(compress(map(_drawn, foot), kept)),
        left=max(len(rows) - MOST_ROWS, 0),
    )


def _drawn(cell: Cell) -> str | Figure | Badge:
    if isinstance(cell, str | Figure | Badge):
        return cell
    if isinstance(cell, bool) or cell is None:
        return "" if cell is None else str(cell)
    return Figure(number(cell), cell)


def _says(cell: str | Figure | Badge) -> bool:
    return bool(cell if isinstance(cell, str) else cell.text)


def share(value: float | None) -> Figure:
    """Return a share as a cell, in percent."""
    return Figure(percent(value), value)


def duration(span: timedelta | None) -> Figure:
    """Return a span of time as a cell; empty if there is none."""
    return Figure("", None) if span is None else Figure(span_text(span), span.total_seconds())


def shown(value: Any) -> Cell:
    """Return a value of a configuration or a metric as a cell; numbers written as text sort."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    text = value if isinstance(value, str) else str(value)
    try:
        return Figure(text, float(text))
    except ValueError:
        return text
