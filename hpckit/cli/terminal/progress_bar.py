"""The progress of a long step: a line on a terminal that vanishes at the end.

It is drawn only if the step takes longer than a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hpckit.context import Context, Tell
from hpckit.values import dataclass

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE = timedelta(seconds=1)
_REDRAWN = timedelta(seconds=0.1)


@contextmanager
def progress_bar(what: str, context: Context) -> Iterator[Tell]:
    """Give a callback for the progress of `what`, drawn on standard error after one second."""
    line = _Line(what=what, context=context, began=context.now())
    try:
        yield line.tell
    finally:
        line.erase()


@dataclass(slots=True, kw_only=True)
class _Line:
    """The line, drawn by rich, which is imported only once the step has taken a second."""

    what: str
    context: Context
    began: datetime
    drawn: datetime | None = None
    bar: Progress | None = None
    task: TaskID | None = None

    def tell(self, done: int, total: int) -> None:
        now = self.context.now()
        if now - self.began < _PATIENCE or now - (self.drawn or self.began) < _REDRAWN:
            return
        self.drawn = now
        if self.bar is None:
            self.bar = self._new()
            self.task = self.bar.add_task(self.what, total=total)
            self.bar.start()
        if self.task is not None:
            self.bar.update(self.task, completed=done, total=total, refresh=True)

    def _new(self) -> Progress:
        # Imported here: most launches take less time than this import.
        from rich import console, progress  # noqa: PLC0415

        return progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            console=console.Console(file=self.context.stderr, highlight=False),
            auto_refresh=False,
            transient=True,
        )

    def erase(self) -> None:
        if self.bar is not None:
            self.bar.stop()
