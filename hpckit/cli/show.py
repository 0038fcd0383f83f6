"""Puts a page before whoever reads it: coloured tables on a terminal, plain lines elsewhere.

Responsible for choosing between the two; it must not word anything (report/text does).
"""

from __future__ import annotations

from hpckit.cli.context import Context
from hpckit.record.launches import Launch
from hpckit.report.rows import LaunchHead
from hpckit.report.text import Page, drawn, plain


def show_page(page: Page, context: Context) -> None:
    """Write a page to standard output."""
    if not context.terminal:
        context.say(plain(page))
        return
    from rich.console import Console  # noqa: PLC0415  # only where a terminal draws

    Console(file=context.stdout, highlight=False).print(drawn(page))


def launch_head(launch: Launch) -> LaunchHead:
    """Return what is shown above the runs of a launch."""
    return LaunchHead(
        id=launch.id, name=launch.name, folder=str(launch.folder), created_at=launch.created_at
    )
