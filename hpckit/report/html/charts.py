"""Sections of the page, and their charts: values of templates; plotly.js takes those of charts.

Pure: it imports no plotly. Plotly reads some markup in texts, so texts of users pass `label`.
Colours of text and lines are the page's.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from hpckit.report.escape import escaped_cell, shortened
from hpckit.values import dataclass, field

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
    """A chart: where on the page, how high, and what its template of `templates/charts` gets."""

    id: str
    template: str
    height: int
    values: Mapping[str, Any]


def label(text: str, width: int = LABEL_WIDTH) -> str:
    """Return a text that plotly shows as it is, on one line."""
    return html.escape(shortened(escaped_cell(text), width), quote=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section; the template of its name gets `values`. `why_empty` stands in place of it."""

    name: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    why_empty: str = ""
