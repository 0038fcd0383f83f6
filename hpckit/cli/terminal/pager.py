"""Shows a page to the user: coloured tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

from hpckit.context import Context
from hpckit.report.text import Page, plain


def show_page(page: Page, context: Context, *, paged: bool = False) -> None:
    """Write a page to standard output.

    A page that may be `paged` and is too long for the terminal goes through $PAGER.
    """
    if not context.terminal:
        context.say(plain(page))
        return
    from hpckit.cli.terminal.screen import draw_page  # noqa: PLC0415  # it imports rich

    draw_page(page, context.stdout, lambda height: paged and _needs_pager(page, height, context))


def _needs_pager(page: Page, height: int, context: Context) -> bool:
    """Whether a page does not fit the terminal and a user is there to page through it."""
    own = context.stdout is sys.stdout and sys.stdin is not None and sys.stdin.isatty()
    return own and plain(page).count("\n") + 1 >= height


def note_unshown(total: int, shown: int, context: Context) -> None:
    """Note how many rows a limit has left out."""
    if total > shown:
        context.note(f"{total - shown} more not shown; --limit 0 shows all")
