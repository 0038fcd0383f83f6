"""Pages on a terminal: tables that fit its width, with coloured states.

Names of launches, runs and jobs are copied from the screen, so they are never broken over lines. If a table
is too wide, cells of its `flexible` columns are cut, then its `spare` columns are left out and named; what is
left then breaks over lines. Only this module imports rich: plain text and `--json` work without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from hpckit.model.states import RunState
from hpckit.report.escape import escape_controls
from hpckit.report.text import Page, TextTable, escape_table
from hpckit.values import dataclass

_WHOLE = frozenset({"launch", "run", "index", "stage", "state", "job"})
_BETWEEN = 2
"""The number of blanks between two columns."""

_LEAST = 12
"""A flexible column may be cut to this many cells, unless it is narrower."""

_QUOTED = "  "
"""The prefix of lines that users copy: tracebacks and commands."""

STATE_STYLES = {
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
    """A table of text cells that adapts to a narrow terminal as its sheet allows."""

    sheet: TextTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and below it the names of the columns that did not fit."""
        widths, left_out = self._choose_column_widths(options.max_width)
        header = self.sheet.header
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, width in widths.items():
            name = header[place]
            # As Text: a string is read as markup, and a metric may be named `[red]`.
            title = Text(_cut_to_width(name, width))
            table.add_column(title, overflow="fold", no_wrap=name in _WHOLE)
        for row in self.sheet.rows:
            cells = ((row[place], header[place], width) for place, width in widths.items())
            table.add_row(*(_style_cell(_cut_to_width(cell, width), name) for cell, name, width in cells))
        yield table
        if left_out:
            yield Text(f"no room here for: {', '.join(left_out)} (--json has all)", style="dim")

    def _choose_column_widths(self, room: int) -> tuple[dict[int, int], list[str]]:
        """Return the width of each shown column, by its place, and the names of those left out.

        A width is that of the widest cell, or less if the column is cut.
        """
        lines = [self.sheet.header, *self.sheet.rows]
        header = self.sheet.header
        widths = {place: max(cell_len(line[place]) for line in lines) for place in range(len(header))}
        left_out: list[str] = []
        spare = [header.index(name) for name in self.sheet.spare if name in header]
        # The least important column is left out before anything is cut.
        found = widths if _sum_widths(widths) <= room else {}
        while not found and spare:
            place = spare.pop(0)
            left_out.append(header[place])
            widths.pop(place, None)
            found = self._narrow_flexible_columns(widths, room)
        return found or self._narrow_flexible_columns(widths, room) or widths, left_out

    def _narrow_flexible_columns(self, widths: dict[int, int], room: int) -> dict[int, int]:
        """Return widths that fit, the widest flexible columns cut most; empty if nothing fits."""
        found = dict(widths)
        may = [place for place in found if self.sheet.header[place] in self.sheet.flexible]
        left = room - _sum_widths(found)
        while left < 0:
            place = max(may, key=lambda one: found[one], default=None)
            if place is None or found[place] <= _LEAST:
                return {}
            found[place] -= 1
            left += 1
        return found


def _sum_widths(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + _BETWEEN * (len(widths) - 1)


def render_page_for_rich(page: Page) -> Group:
    """Return a page for a rich console: tables with coloured states."""
    return Group(*split_page_parts(page))


def split_page_parts(page: Page) -> Iterator[FittedTable | Text]:
    """Yield the tables and texts of a page, each line of a text separately."""
    for part in page:
        if isinstance(part, str):
            yield from map(Text, escape_controls(part).split("\n"))
        else:
            yield FittedTable(sheet=escape_table(part))


def _cut_to_width(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _style_cell(cell: str, column: str) -> Text:
    known = column == "state" and cell in RunState.__members__
    return Text(cell, style=STATE_STYLES[RunState(cell)] if known else "")


def should_keep_line_whole(text: Text, width: int) -> bool:
    """Whether to keep a line whole: it is indented, or has a word wider than the terminal."""
    line = text.plain
    return line.startswith(_QUOTED) or any(cell_len(word) > width for word in line.split())
