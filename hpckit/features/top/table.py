"""The table of runs of `hpckit top`: draws visible lines only, and of these only what changed.

Textual's own table measures all its cells again with each change, which takes half a second for a
thousand rows. It imports Textual: import it only with the application.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hpckit.features.top.frame import TopColumn, TopRow
from hpckit.features.top.order import TopOrder, choose_fitting_columns, find_filled_columns, format_heading
from hpckit.report.drawing import STATE_STYLES

_LEFT = frozenset({TopColumn.state, TopColumn.overrides})
"""Columns of text; numbers stand at the right."""

_SELECTED = Style(reverse=True)
_HEADING = Style(bold=True, underline=True)


class RunTable(ScrollView, can_focus=True, inherit_bindings=False):
    """The runs, one line each below a heading; one of them is selected.

    Arrow keys belong to the application, which takes them also while the table is hidden.
    """

    class Selected(Message):
        """Another run was selected, or other runs are visible."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: tuple[TopRow, ...] = ()
        self.metric = ""
        self.order = TopOrder()
        self.cursor = 0
        self.columns = frozenset(TopColumn)
        self._drawn: dict[int, tuple[object, ...]] = {}

    @property
    def selected_row(self) -> TopRow | None:
        """The selected run, if there is any."""
        return self.rows[self.cursor] if self.rows else None

    @property
    def visible_rows(self) -> tuple[TopRow, ...]:
        """The runs that are on the screen."""
        first = self.scroll_offset.y
        return self.rows[first : first + max(self.size.height - 1, 1)]

    def show_rows(self, rows: Sequence[TopRow], metric: str, order: TopOrder) -> int:
        """Show these rows; the selected run stays selected. Return how many lines are redrawn."""
        before = self.selected_row
        self.rows, self.metric, self.order = tuple(rows), metric, order
        self.columns = find_filled_columns(self.rows)
        if before is not None:
            places = [place for place, row in enumerate(rows) if row.index == before.index]
            self.cursor = places[0] if places else self.cursor
        self.cursor = max(min(self.cursor, len(self.rows) - 1), 0)
        size = Size(self.size.width, len(self.rows) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        changed = [y for y in range(self.size.height) if self._drawn.get(y) != self._line_redraw_key(y)]
        for y in changed:
            self.refresh_line(self.scroll_offset.y + y)
        return len(changed)

    def move_selection(self, lines: int) -> None:
        """Select the run that many lines below."""
        self.select_run(self.cursor + lines)

    def move_selection_by_pages(self, pages: int) -> None:
        """Select the run that many pages below."""
        self.move_selection(pages * max(self.size.height - 2, 1))

    def select_run(self, place: int) -> None:
        """Select the run at this place, and scroll to it."""
        place = max(min(place, len(self.rows) - 1), 0)
        if place == self.cursor:
            return
        self.cursor = place
        height, first = max(self.size.height - 1, 1), self.scroll_offset.y
        if place < first:
            self.scroll_to(y=place, animate=False, immediate=True)
        elif place >= first + height:
            self.scroll_to(y=place - height + 1, animate=False, immediate=True)
        self.refresh()
        self.post_message(self.Selected())

    def on_click(self, event: events.Click) -> None:
        """Select the run that was clicked."""
        if event.y >= 1:
            self.select_run(self.scroll_offset.y + event.y - 1)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Ask for what was not visible before."""
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Selected())

    def render_line(self, y: int) -> Strip:
        """Return the line at this place of the screen: the heading, or a run."""
        self._drawn[y] = self._line_redraw_key(y)
        columns = choose_fitting_columns(self.size.width, self.columns)
        if y == 0:
            return Strip([Segment(self._format_headings(columns), _HEADING)])
        place = self.scroll_offset.y + y - 1
        if place >= len(self.rows):
            return Strip.blank(self.size.width)
        row = self.rows[place]
        selected = _SELECTED if place == self.cursor else Style()
        pieces = []
        for column, width in columns:
            style = Style.parse(STATE_STYLES[row.state]) if column is TopColumn.state else Style()
            pieces.append(Segment(_fit_cell_text(row.cells[column], column, width) + " ", style + selected))
        return Strip(pieces).adjust_cell_length(self.size.width)

    def _line_redraw_key(self, y: int) -> tuple[object, ...]:
        """Return all that the line at this place of the screen depends on."""
        place = self.scroll_offset.y + y - 1
        if y == 0 or place >= len(self.rows):
            return (self.size.width, self.columns, self.metric, self.order)
        row = self.rows[place]
        return (self.size.width, self.columns, place == self.cursor, row.state, *row.cells.values())

    def _format_headings(self, columns: Sequence[tuple[TopColumn, int]]) -> str:
        names = []
        for column, width in columns:
            name = format_heading(column, self.metric)
            if column is self.order.column:
                name = ("▼" if self.order.descending else "▲") + name
            names.append(_fit_cell_text(name, column, width) + " ")
        return set_cell_size("".join(names), self.size.width)


def _fit_cell_text(text: str, column: TopColumn, width: int) -> str:
    """Return a text in exactly this many cells of the terminal."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    blank = " " * (width - cell_len(text))
    return text + blank if column in _LEFT else blank + text
