"""The full-screen application of `hpckit top`: maps the view models of report.top to widgets.

It reads and decides nothing itself: it is given what to look with and what to cancel with. All
texts are plain: no markup is ever read. It imports Textual, which is optional and slow: import it
only for this application.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Footer, Input, Static

from hpckit.errors import HpckitError
from hpckit.features.top.detail import format_gpus_and_ranks, format_plot_title
from hpckit.features.top.frame import TopDetail, TopFrame
from hpckit.features.top.order import TopOrder, filter_and_sort_rows
from hpckit.features.top.plot import draw_braille_plot
from hpckit.features.top.reader import TopRequest
from hpckit.features.top.table import RunTable
from hpckit.report.escape import escape_controls
from hpckit.values import dataclass

LOOK_S = 2.0
_SHARE = 10
"""At most one part in ten of the time is spent reading."""

_WIDE = 120
"""From this many columns on, the table stays when one thing is shown in full."""

_NOTE_S = 8.0
_PLOT_LINES = 5
_PAUSE_S = 0.15
"""The detail of a run is read once the arrow keys have rested for so long."""


class Panel(StrEnum):
    """What the right side shows: everything in short, or one thing in full."""

    overview = "overview"
    log = "log"
    gpus = "GPUs and ranks"
    events = "events"


@dataclass(frozen=True, slots=True)
class TopSource:
    """Where an application gets its frames: `look` reads all, `redraw` what another request needs.

    `load` reads a curve in full, when a frame lacks it. `cancel` cancels a run and returns what was
    done, in words. All may take long, are called in threads, and raise HpckitError.
    """

    look: Callable[[TopRequest], TopFrame]
    redraw: Callable[[TopRequest], TopFrame]
    load: Callable[[TopRequest], TopFrame]
    cancel: Callable[[int], str]


class AskCancel(ModalScreen[bool]):
    """Asks whether a run is to be cancelled; only `y` means yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Cancel the run"),
        Binding("n,escape,q,enter", "answer(False)", "Let it run"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        """Show the question."""
        text = f"{escape_controls(self.question)}\n\ny: cancel it   n: let it run"
        yield Static(Text(text), id="question")

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001  # of a key binding
        """Close with the answer."""
        self.dismiss(answer)


class DetailPane(Vertical):
    """The right side; what fits into it depends on its size."""

    class Resized(Message):
        """It has another size."""

    def on_resize(self) -> None:
        """Tell the application."""
        self.post_message(self.Resized())


class TopApp(App[None]):
    """The runs of a launch on a whole terminal."""

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("m", "metric", "Metric"),
        Binding("l", "panel('log')", "Log"),
        Binding("g", "panel('GPUs and ranks')", "GPUs"),
        Binding("e", "panel('events')", "Events"),
        Binding("c", "cancel", "Cancel"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("escape", "close_filter", "Close", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "move(-1000000000)", "First", show=False),
        Binding("end", "move(1000000000)", "Last", show=False),
    ]

    def __init__(self, source: TopSource, *, interval_s: float = LOOK_S) -> None:
        super().__init__()
        self.source, self.interval_s = source, interval_s
        self.frame: TopFrame | None = None
        self.order = TopOrder()
        self.words = ""
        self.metric = ""
        self.panel = Panel.overview
        self.note = ""
        self.error: HpckitError | None = None
        self.table = RunTable()
        self._pause: Timer | None = None
        self._forget: Timer | None = None
        self._loading = False
        self._texts: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        """Lay the widgets out."""
        yield Static(id="head", markup=False)
        with Horizontal():
            with Vertical(id="left"):
                yield self.table
            with DetailPane(id="right"):
                for name in ("title", "plot", "gpus", "log"):
                    yield Static(id=name, markup=False)
        yield Static(id="events", markup=False)
        yield Input(id="filter", placeholder="words of overrides or states, such as lr=0.* running")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.table.focus()
        self._read_frame_in_thread()

    @property
    def current_request(self) -> TopRequest:
        """What is to be read now."""
        selected = self.table.selected_row
        return TopRequest(
            visible=tuple(row.index for row in self.table.visible_rows),
            selected=None if selected is None else selected.index,
            metric=self.metric,
        )

    @work(thread=True, exclusive=True, group="look")
    def _read_frame_in_thread(self) -> None:
        request = self._fetch_request()
        began = time.monotonic()  # only now: waiting for the application is not reading
        frame = self._read_or_exit(self.source.look, request)
        spent_s = time.monotonic() - began
        if frame is not None:
            self.call_from_thread(
                self.show_frame_and_schedule_next, frame, max(self.interval_s, spent_s * _SHARE)
            )

    @work(thread=True, exclusive=True, group="redraw")
    def _rebuild_frame_in_thread(self) -> None:
        frame = self._read_or_exit(self.source.redraw, self._fetch_request())
        if frame is not None:
            self.call_from_thread(self.show_frame_and_schedule_next, frame, None)

    @work(thread=True, group="load")
    def _load_curve_in_thread(self) -> None:
        frame = self._read_or_exit(self.source.load, self._fetch_request())
        self._loading = False
        if frame is not None:
            self.call_from_thread(self.show_frame_and_schedule_next, frame, None)

    def _fetch_request(self) -> TopRequest:
        """Return what is to be read now, from another thread."""
        return self.call_from_thread(lambda: self.current_request)

    def _read_or_exit(self, read: Callable[[TopRequest], TopFrame], request: TopRequest) -> TopFrame | None:
        try:
            return read(request)
        except HpckitError as error:
            self.error = error
            self.call_from_thread(self.exit)
            return None

    def show_frame_and_schedule_next(self, frame: TopFrame, next_s: float | None) -> None:
        """Show a frame, and look again after this many seconds."""
        first, self.frame = self.frame is None, frame
        self.show_frame()
        if next_s is not None:
            self.set_timer(next_s, self._read_frame_in_thread)
        if first:
            self._rebuild_frame_in_thread()  # now it is known which runs are visible
        elif frame.detail is not None and frame.detail.loading and not self._loading:
            self._loading = True
            self._load_curve_in_thread()

    def show_frame(self) -> None:
        """Map the latest frame to the widgets."""
        if self.frame is None or not self.query("#right"):
            return  # nothing to show yet, or the widgets are gone: the app is closing
        rows = filter_and_sort_rows(self.frame.rows, self.words, self.order)
        self.table.show_rows(rows, self.frame.metric, self.order)
        self._update_widget_text(
            "head", "\n".join([self.frame.head[0], self._format_note_warning_or_counts(len(rows))])
        )
        detail = self.frame.detail
        if detail is not None:
            self._show_detail(detail)

    def _format_note_warning_or_counts(self, shown: int) -> str:
        assert self.frame is not None, "there is a frame to show"  # noqa: S101
        if self.note or self.frame.warning:
            return self.note or f"warning: {self.frame.warning}"
        filtered = f"{shown} match {self.words!r}; " if self.words else ""
        return filtered + self.frame.head[1]

    def _show_detail(self, detail: TopDetail) -> None:
        self._update_widget_text("title", detail.title)
        height = self.query_one("#right").size.height
        width = max(self.query_one("#right").size.width - 2, 1)
        if self.panel is Panel.overview:
            lines = [format_plot_title(detail), *draw_braille_plot(detail.points, width, _PLOT_LINES)]
            self._update_widget_text("plot", "\n".join(lines))
            gpus = format_gpus_and_ranks(detail.activity, width)[: max(height * 2 // 5, 1)]
            self._update_widget_text("gpus", "\n".join(gpus))
            room = height - len(gpus) - _PLOT_LINES - 3  # three titles
            self._update_widget_text(
                "log", "\n".join([detail.log_title, *(detail.log[-room:] if room > 0 else ())])
            )
        else:
            whole = {
                Panel.log: detail.log,
                Panel.gpus: tuple(format_gpus_and_ranks(detail.activity)),
                Panel.events: detail.events,
            }[self.panel]
            first = self.panel is Panel.gpus
            room = height - 2
            shown = whole[:room] if first else whole[-room:] if room > 0 else ()
            self._update_widget_text("log", "\n".join([self.panel, *(shown or ("nothing yet",))]))
        self._update_widget_text("events", "\n".join(detail.events[-3:]))

    def _update_widget_text(self, name: str, text: str) -> None:
        """Change a text, if it differs from what is shown.

        An app that closes loses its widgets one by one, and a frame may arrive between two.
        """
        text = escape_controls(text)
        if self._texts.get(name) != text:
            self._texts[name] = text
            for widget in self.query(f"#{name}").results(Static):
                widget.update(Text(text, no_wrap=True, overflow="ellipsis"))

    def shown_text(self, name: str) -> str:
        """Return the text that a widget shows."""
        return self._texts.get(name, "")

    def on_run_table_selected(self) -> None:
        """Read the detail of another run, and what was not visible, once the keys rest."""
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(_PAUSE_S, self._rebuild_frame_in_thread)

    def on_detail_pane_resized(self) -> None:
        """Fill the new size."""
        self.show_frame()

    def action_move(self, lines: int) -> None:
        """Select the run that many lines below."""
        self.table.move_selection(lines)

    def action_page(self, pages: int) -> None:
        """Select the run that many pages below."""
        self.table.move_selection_by_pages(pages)

    def action_sort(self) -> None:
        """Sort by the next column, or the other way round."""
        self.order = self.order.next_order
        self._show_temporary_message(f"sorted by {self.order.description}")

    def action_metric(self) -> None:
        """Show the next metric."""
        names = () if self.frame is None else self.frame.metrics
        if self.frame is None or not names:
            return
        place = names.index(self.frame.metric) if self.frame.metric in names else -1
        self.metric = names[(place + 1) % len(names)]
        self._rebuild_frame_in_thread()

    def action_panel(self, name: str) -> None:
        """Show one thing in full, or everything again."""
        wanted = Panel(name)
        self.panel = Panel.overview if self.panel is wanted else wanted
        overview = self.panel is Panel.overview
        for part in ("plot", "gpus"):
            self.query_one(f"#{part}").display = overview
        # A log needs the width of a narrow terminal for itself.
        self.query_one("#left").display = overview or self.size.width >= _WIDE
        self.show_frame()

    def action_filter(self) -> None:
        """Ask for the words of a filter."""
        box = self.query_one("#filter", Input)
        box.add_class("open")
        self.set_focus(box)  # at once: the next key may be here already, and is no command

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as the words are typed."""
        self.words = event.value
        self._show_temporary_message("")

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the table."""
        self.query_one("#filter", Input).remove_class("open")
        self.table.focus()
        self.on_run_table_selected()

    def action_close_filter(self) -> None:
        """Remove the filter, and go back to the table."""
        self.query_one("#filter", Input).value = ""
        self.on_input_submitted()

    def action_cancel(self) -> None:
        """Cancel the selected run, after asking."""
        row = self.table.selected_row
        if row is None:
            return
        if row.state.ended:
            self._show_temporary_message(f"{row.run} is over: {row.state}")
            return

        def answered(answer: bool | None) -> None:  # noqa: FBT001  # Textual's own form
            if answer:
                self._show_temporary_message(f"cancelling {row.run}")
                self._cancel_run(row.index)
            else:
                self._show_temporary_message("nothing is cancelled")

        self.push_screen(AskCancel(f"Cancel {row.run} ({row.state})?"), answered)

    @work(thread=True, group="cancel")
    def _cancel_run(self, index: int) -> None:
        try:
            said = self.source.cancel(index)
        except HpckitError as error:
            said = f"error: {error.message}"
        self.call_from_thread(self._show_temporary_message, said)

    def _show_temporary_message(self, note: str) -> None:
        """Show a note in place of the counts for some seconds; an empty one takes it back."""
        self.note = " ".join(note.split())
        self.show_frame()
        if self._forget is not None:
            self._forget.stop()
        self._forget = self.set_timer(_NOTE_S, lambda: self._show_temporary_message("")) if note else None


def run_top(source: TopSource) -> None:
    """Show the application until the user leaves it. Raises what reading raised."""
    app = TopApp(source)
    with _redirect_original_streams():
        app.run()
    if app.error is not None:
        raise app.error


@contextmanager
def _redirect_original_streams() -> Iterator[None]:
    """Have Textual, which draws on the streams Python began with, use those that replaced them."""
    before = sys.__stdout__, sys.__stderr__
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        sys.__stdout__, sys.__stderr__ = before  # type: ignore[misc]
