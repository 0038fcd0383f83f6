"""How far a long step is, for whoever sits before a terminal: a line that vanishes at the end.

Responsible for when it is drawn: beyond a second, and on a terminal's standard error only. It must
not know what the steps are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hpckit.cli.context import Context

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Tell = Callable[[int, int], None]
"""Takes how many are done, of how many."""

_PATIENCE = timedelta(seconds=1)
_REDRAWN = timedelta(seconds=0.1)


@contextmanager
def progress(what: str, context: Context, *, quiet: bool = False) -> Iterator[Tell]:
    """Give what takes the progress of `what`; with `quiet`, and for programs, nothing is drawn."""
    if quiet or not context.stderr.isatty():
        yield _nobody
        return
    line = _Line(what=what, context=context, began=context.now())
    try:
        yield line.tell
    finally:
        line.erase()


def _nobody(_done: int, _total: int) -> None:
    """Tell nobody."""


@dataclass(slots=True, kw_only=True)
class _Line:
    """The line: drawn by rich, which is imported only once somebody has waited."""

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
        from rich.console import Console  # noqa: PLC0415  # most launches are faster than its import
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(file=self.context.stderr, highlight=False),
            auto_refresh=False,
            transient=True,
        )

    def erase(self) -> None:
        if self.bar is not None:
            self.bar.stop()
