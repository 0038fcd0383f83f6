"""Tables on a terminal, as wide as it is.

Responsible for what gives way where a table is wider than the terminal; it must not word a cell.
Names of launches, runs and jobs are copied from the screen: they are never broken over lines. What
a sheet calls `spare` is left out first, and said; what is left then breaks over lines. Imported
only where a terminal draws: it needs rich.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_WHOLE = frozenset({"launch", "run", "index", "stage", "state", "job"})
_BETWEEN = 2
"""The blanks between two columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """A table of worded cells; `spare` are columns that may go, the first one first."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    spare: Sequence[str]
    styled: Callable[[str, str], Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and below it what there was no room for."""
        kept, left_out = self._choose(options.max_width)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place in kept:
            name = self.header[place]
            table.add_column(name, overflow="fold", no_wrap=name in _WHOLE)
        for row in self.rows:
            table.add_row(*(self.styled(row[place], self.header[place]) for place in kept))
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
