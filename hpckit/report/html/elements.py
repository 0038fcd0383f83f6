"""HTML as text that is escaped where it is made: whatever is no `Html` is text of others. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hpckit.model.counted import counted
from hpckit.report.escape import escaped
from hpckit.report.text import number

MOST_ROWS = 2000
"""Longer tables are cut, with a remark."""

_VOID = frozenset({"meta", "br"})


T = TypeVar("T")


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A cell that shows a text and sorts by a number."""

    text: str
    value: float | None


Cell = str | Figure | float | int | None


def element(name: str, /, *children: str, **attributes: str | None) -> Html:
    """Return an element; `class_` is the attribute `class`. Children that are no Html are text."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{''.join(map(escape, children))}</{name}>")


def escape(text: str) -> Html:
    """Return text as HTML that shows it, control characters included; HTML stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(escaped(text)))


def joined(parts: Iterable[str]) -> Html:
    """Return the parts one after the other."""
    return Html("".join(map(escape, parts)))


def paragraph(text: str, kind: str | None = None) -> Html:
    """Return a paragraph of text."""
    return element("p", text, class_=kind)


def bullets(items: Iterable[str]) -> Html:
    """Return a list."""
    return element("ul", *(element("li", item) for item in items))


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    label: str,
    foot: Sequence[Cell] | None = None,
) -> Html:
    """Return a table in a box of its own, which scrolls if the table is wider than the page.

    Columns in which no row has anything are left out.
    """
    kept = [place for place in range(len(header)) if any(map(_says, (row[place] for row in rows)))]
    header, rows = _columns(header, kept), [_columns(row, kept) for row in rows]
    foot = foot if foot is None else _columns(foot, kept)
    numeric = [any(_is_number(row[place]) for row in rows) for place in range(len(header))]
    heads = (
        element("th", name, scope="col", class_="n" if right else None)
        for name, right in zip(header, numeric, strict=True)
    )
    head = element("tr", *heads)
    body = (Html("<tr>" + "".join(map(_cell, row)) + "</tr>") for row in rows[:MOST_ROWS])
    parts = [element("thead", head), element("tbody", *body)]
    if foot is not None:
        parts.append(element("tfoot", Html("<tr>" + "".join(map(_cell, foot)) + "</tr>")))
    box = element(
        "div",
        element("table", *parts, class_="sortable" if len(rows) > 1 else None),
        class_="scroll",
        role="region",
        tabindex="0",
        aria_label=label,
    )
    left = len(rows) - MOST_ROWS
    if left <= 0:
        return box
    return joined([box, paragraph(f"{counted(left, 'more row')} not shown.", "remark")])


def _says(cell: Cell) -> bool:
    return bool(cell.text) if isinstance(cell, Figure) else cell is not None and cell != ""


def _is_number(cell: Cell) -> bool:
    if isinstance(cell, Figure):
        return True
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _columns(cells: Sequence[T], kept: Sequence[int]) -> list[T]:
    return [cells[place] for place in kept]


def _cell(cell: Cell) -> Html:
    if isinstance(cell, Figure):
        value = None if cell.value is None else f"{cell.value:.10g}"
        return element("td", cell.text, class_="n", data_sort=value)
    if isinstance(cell, str):
        return element("td", cell)
    if isinstance(cell, bool) or cell is None:
        return element("td", "" if cell is None else str(cell))
    return element("td", number(cell), class_="n", data_sort=f"{cell:.10g}")


def shown(value: Any) -> Cell:
    """Return a value of a configuration or a metric as a cell; numbers written as text sort."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    text = value if isinstance(value, str) else str(value)
    try:
        return Figure(text, float(text))
    except ValueError:
        return text
