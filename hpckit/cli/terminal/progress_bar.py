"""The progress of a long step: a line on a terminal that vanishes at the end.

It is drawn only if the step takes longer than a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from hpckit.context import Context, Tell

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE = timedelta(seconds=1)
_REDRAWN = timedelta(seconds=0.1)


@contextmanager
def show_progress_bar(what: str, context: Context) -> Iterator[Tell]:
    """Give a callback for the progress of `what`, drawn on standard error after one second."""
    began = drawn = context.now()
    bar: Progress | None = None

    def tell(done: int, total: int) -> None:
        nonlocal bar, drawn
        now = context.now()
        if now - began < _PATIENCE or now - drawn < _REDRAWN:
            return
        drawn = now
        if bar is None:
            bar = _build_progress_bar(context)
            bar.add_task(what, total=total)
            bar.start()
        bar.update(bar.task_ids[0], completed=done, total=total, refresh=True)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.stop()


def _build_progress_bar(context: Context) -> Progress:
    # Imported here: most launches take less time than this import.
    from rich import console, progress  # noqa: PLC0415

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(file=context.stderr, highlight=False),
        auto_refresh=False,
        transient=True,
    )
