"""Charts as what plotly.js takes, in plain JSON values; colours of text and lines are the page's.

Pure: it imports no plotly. Plotly reads some markup in texts, so texts of users pass `label`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpckit.report.escape import escaped_cell, shortened
from hpckit.report.html.elements import Html, element

LABEL_WIDTH = 48

COLOURS = (
    *("#1f83c4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#8c6bb1", "#b8860b", "#7f7f7f", "#bc5090", "#2f9e8f", "#a05d56"),
)
"""Okabe and Ito's, without black and yellow, and six more: readable on light and dark paper."""

VIRIDIS = (
    *("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: where on the page, what it shows in words, how high, and what plotly draws.

    `axes` are other x axes to choose from, by name: the title, and the places of each trace on it,
    null for a trace that it does not have.
    """

    id: str
    label: str
    height: int
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the object that the page's script reads."""
        made = {
            "id": self.id,
            "height": self.height,
            "data": list(self.traces),
            "layout": dict(self.layout),
        }
        return {**made, "axes": dict(self.axes)} if self.axes else made


def label(text: str, width: int = LABEL_WIDTH) -> str:
    """Return a text that plotly shows as it is, on one line."""
    return html.escape(shortened(escaped_cell(text), width), quote=False)


def pattern(shape: str) -> dict[str, Any]:
    """Return the pattern of a bar over its colour; an empty shape is none."""
    return {"shape": shape, "size": 6, "solidity": 0.2, "fillmode": "overlay", "fgcolor": "#333333"}


def legend(entries: Iterable[tuple[str, str, str]]) -> Html:
    """Return a legend that breaks into lines where the page is narrow: name, colour, pattern."""
    items = (
        element(
            "span",
            element(
                "i", class_=f"swatch {_CLASSES.get(shape, '')}", style=f"background-color:{tint}"
            ),
            name,
        )
        for name, tint, shape in entries
    )
    return element("p", *items, class_="legend")


_CLASSES = {"/": "up", "\\": "down", "x": "cross"}


def line(name: str, x: Sequence[Any], y: Sequence[Any], colour: str, **more: Any) -> dict[str, Any]:
    """Return a trace of lines."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 1.6},
        **more,
    }
