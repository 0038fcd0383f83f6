"""Pages on a terminal: tables as wide as it is, with coloured states.

Names of launches, runs and jobs are copied from the screen: they are never broken over lines. If a
table is too wide, the columns that a sheet calls `spare` are left out first, and named; what is
left then breaks over lines. It imports rich: plain text and `--json` do without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from hpckit.model.states import RunState
from hpckit.report.escape import escaped
from hpckit.report.text import Page, harmless

_WHOLE = frozenset({"launch", "run", "index", "stage", "state", "job"})
_BETWEEN = 2
"""The blanks between two columns."""

_STYLES = {
    RunState.pending: "yellow",
    RunState.running: "cyan",
    RunState.completed: "green",
    RunState.failed: "bold red",
    RunState.cancelled: "magenta",
    RunState.interrupted: "bold yellow",
    RunState.unknown: "bold magenta",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """A table of worded cells; `spare` are columns that may go, the first one first."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    spare: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and below it what there was no room for."""
        kept, left_out = self._choose(options.max_width)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place in kept:
            name = self.header[place]
            table.add_column(name, overflow="fold", no_wrap=name in _WHOLE)
        for row in self.rows:
            table.add_row(*(_styled(row[place], self.header[place]) for place in kept))
        yield table
        if left_out:
            yield Text(f"no room here for: {', '.join(left_out)} (--json has all)", style="dim")

    def _choose(self, room: int) -> tuple[list[int], list[str]]:
        """Return the places of the columns to show, and the names of those left out."""
        kept = list(range(len(self.header)))
        left_out: list[str] = []
        for name in self.spare:
            if self._width(kept) <= room:
                break
            if name in self.header and self.header.index(name) in kept:
                kept.remove(self.header.index(name))
                left_out.append(name)
        return kept, left_out

    def _width(self, places: Sequence[int]) -> int:
        lines = [self.header, *self.rows]
        widths = (max(cell_len(line[place]) for line in lines) for place in places)
        return sum(widths) + _BETWEEN * (len(places) - 1)


def drawn(page: Page) -> Group:
    """Return a page for a rich console: tables with coloured states."""
    parts: list[FittedTable | Text] = []
    for part in page:
        if isinstance(part, str):
            parts.append(Text(escaped(part)))
            continue
        sheet = harmless(part)
        parts.append(FittedTable(header=sheet.header, rows=sheet.rows, spare=sheet.spare))
    return Group(*parts)


def _styled(cell: str, column: str) -> Text:
    known = column == "state" and cell in RunState.__members__
    return Text(cell, style=_STYLES[RunState(cell)] if known else "")
