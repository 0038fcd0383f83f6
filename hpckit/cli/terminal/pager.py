"""Shows a page to the user: coloured tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

from hpckit.context import Context
from hpckit.report.text import Page, render_plain_text


def show_page(page: Page, context: Context, *, paged: bool = False) -> None:
    """Write a page to standard output.

    A page that may be `paged` and is too long for the terminal goes through $PAGER.
    """
    if not context.has_terminal:
        context.say(render_plain_text(page))
        return
    from hpckit.cli.terminal.screen import draw_page  # noqa: PLC0415  # it imports rich

    draw_page(page, context.stdout, lambda height: paged and _needs_pager(page, height, context))


def _needs_pager(page: Page, height: int, context: Context) -> bool:
    """Whether a page does not fit the terminal and a user is there to page through it."""
    own = context.stdout is sys.stdout and sys.stdin is not None and sys.stdin.isatty()
    return own and render_plain_text(page).count("\n") + 1 >= height


def tell_how_many_rows_are_left_out(total: int, shown: int, context: Context) -> None:
    """Note how many rows a limit has left out."""
    if total > shown:
        context.note(f"{total - shown} more not shown; --limit 0 shows all")
