"""One section of the page: its text, and the charts in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpckit.report.html.charts import Chart
from hpckit.report.html.elements import Html, element, joined, paragraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section; `charts` are those that stand in its body."""

    id: str
    title: str
    body: Html
    charts: tuple[Chart, ...] = ()

    def html(self, number: int) -> Html:
        """Return the section with its heading."""
        heading = element("h2", f"{number}. {self.title}", id=f"{self.id}-title")
        return element(
            "section", heading, self.body, id=self.id, aria_labelledby=f"{self.id}-title"
        )


def section(id_: str, title: str, parts: Iterable[Html | Chart]) -> Section:
    """Return a section of texts and charts, in order."""
    some = list(parts)
    return Section(
        id=id_,
        title=title,
        body=joined(_place(one) if isinstance(one, Chart) else one for one in some),
        charts=tuple(one for one in some if isinstance(one, Chart)),
    )


def empty_section(id_: str, title: str, why: str) -> Section:
    """Return a section that only says why it has nothing to show."""
    return Section(id=id_, title=title, body=paragraph(why, "remark"))


def _place(chart: Chart) -> Html:
    return element(
        "div",
        paragraph("A chart, for which JavaScript has to be allowed.", "remark"),
        id=chart.id,
        class_="chart",
        role="img",
        aria_label=chart.label,
        style=f"height:{chart.height}px",
    )


Sections = Sequence[Section]
