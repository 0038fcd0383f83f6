"""Draws pages on a terminal with rich: once, through a pager, or repeatedly.

It imports rich, which is slow: import it only to draw on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hpckit.report.drawing import render_page_for_rich, should_keep_line_whole, split_page_parts
from hpckit.report.text import Page


def draw_page(page: Page, stdout: TextIO, may_page: Callable[[int], bool]) -> None:
    """Draw a page; it goes through $PAGER if `may_page`, given the terminal's height in lines."""
    console = Console(file=stdout, highlight=False)
    if may_page(console.height):
        # Without colours: how a pager shows them depends on its options.
        with console.pager(styles=False):
            _print_page(page, console)
    else:
        _print_page(page, console)


def _print_page(page: Page, console: Console) -> None:
    for part in split_page_parts(page):
        verbatim = isinstance(part, Text) and should_keep_line_whole(part, console.width)
        # The terminal itself wraps a path that is too long, so that it can be copied in one piece.
        console.print(part, soft_wrap=verbatim)


@contextmanager
def open_live_screen(stdout: TextIO, *, stays: bool = True) -> Iterator[LiveScreen]:
    """Give a screen that shows one page after another; the last one `stays`, or vanishes."""
    console = Console(file=stdout, highlight=False)
    with Live(console=console, auto_refresh=False, transient=not stays) as live:
        yield LiveScreen(console, live)


class LiveScreen:
    """A terminal that shows the latest page."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console, self._live = console, live

    @property
    def height(self) -> int:
        """The height of the terminal in lines."""
        return self._console.height

    def show(self, page: Page) -> None:
        """Draw a page in place of the previous one."""
        self._live.update(render_page_for_rich(page), refresh=True)
