"""One section of the page: what its template shows, and the charts in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpckit.report.html.charts import Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section; the template of its name gets `values`. `why_empty` stands in place of it."""

    name: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    why_empty: str = ""
