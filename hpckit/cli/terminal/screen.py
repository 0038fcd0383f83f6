"""Pages drawn on a terminal by rich: once, through a pager, or again and again.

It imports rich, which is slow: import it only once a terminal draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hpckit.report.drawing import drawn, is_verbatim, parts
from hpckit.report.text import Page


def draw(page: Page, stdout: TextIO, may_page: Callable[[int], bool]) -> None:
    """Draw a page; it goes through $PAGER if it may, given the height of the terminal in lines."""
    console = Console(file=stdout, highlight=False)
    if may_page(console.height):
        # Without colours: what a pager makes of them depends on its options.
        with console.pager(styles=False):
            _print(page, console)
    else:
        _print(page, console)


def _print(page: Page, console: Console) -> None:
    for part in parts(page):
        verbatim = isinstance(part, Text) and is_verbatim(part, console.width)
        # The terminal itself breaks a path that is too long: it is then copied in one piece.
        console.print(part, soft_wrap=verbatim)


@contextmanager
def live_screen(stdout: TextIO, *, stays: bool = True) -> Iterator[LiveScreen]:
    """Give a screen that shows one page after the other; the last one `stays`, or vanishes."""
    console = Console(file=stdout, highlight=False)
    with Live(console=console, auto_refresh=False, transient=not stays) as live:
        yield LiveScreen(console, live)


class LiveScreen:
    """A terminal that shows the latest page."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console, self._live = console, live

    @property
    def height(self) -> int:
        """How many lines the terminal has."""
        return self._console.height

    def show(self, page: Page) -> None:
        """Draw a page in place of the one before."""
        self._live.update(drawn(page), refresh=True)
