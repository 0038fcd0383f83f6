"""Waits for a launch: follows its record closely and asks the scheduler rarely.

Responsible for when to look and when it is over, and for showing that; it must not change
anything: after Ctrl-C the runs go on, on Slurm and on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.model.states import RunState
from hpckit.operations.next_step import only_a_view
from hpckit.record.launches import Launch
from hpckit.report.rows import RunRow, run_row
from hpckit.report.text import Page, count_line, status_page
from hpckit.views.launch_head import launch_head
from hpckit.views.poller import Poller

_RECORD_S = 0.5
_SHARE = 10
"""Of ten parts of the time at most one is spent reading: sweeps on slow file systems."""

_REMARK = timedelta(seconds=30)
_SHOWN_LIVE = 20


def wait(
    launch: Launch, context: Context, *, quiet: bool = False, indices: Sequence[int] | None = None
) -> int:
    """Wait until nothing more will happen; returns 0 where every run completed, else 1.

    `indices` are the runs to wait for, all by default.
    Ctrl-C ends the waiting with LeftView, after saying so; the runs go on.
    """
    watch = Poller(launch=launch, context=context, indices=indices)
    with only_a_view(launch, context), _display(context, quiet=quiet) as show:
        _follow(watch, show)
    if not quiet and not context.terminal:
        show_page(_page(watch), context)
    return int(any(view.state is not RunState.completed for view in watch.views))


def _follow(watch: Poller, show: Callable[[Poller], None]) -> None:
    while True:
        began = watch.context.now()
        watch.look()
        show(watch)
        if watch.over:
            return
        spent = (watch.context.now() - began).total_seconds()
        watch.context.sleep(max(_RECORD_S, spent * _SHARE))


@contextmanager
def _display(context: Context, *, quiet: bool) -> Iterator[Callable[[Poller], None]]:
    if quiet:
        yield lambda _: None
    elif not context.terminal:
        yield _Lines(context=context).show
    else:
        from hpckit.cli.terminal.screen import live_screen  # noqa: PLC0415  # it imports rich

        with live_screen(context.stdout) as screen:
            yield lambda watch: screen.show(_page(watch))


def _page(watch: Poller) -> Page:
    rows = [run_row(view) for view in watch.views]
    page = status_page(launch_head(watch.launch), _most_telling(rows, watch), watch.context.now())
    if len(rows) <= _SHOWN_LIVE or watch.over:
        return page
    return [*page, f"of all {count_line([row.state for row in rows])}"]


def _most_telling(rows: list[RunRow], watch: Poller) -> list[RunRow]:
    """Return the rows a screen can hold: while runs go on, those that run stand first."""
    if len(rows) <= _SHOWN_LIVE or watch.over:
        return rows
    ranked = sorted(rows, key=lambda row: row.state is not RunState.running)
    return ranked[:_SHOWN_LIVE]


@dataclass(slots=True, kw_only=True)
class _Lines:
    """Plain lines: one for each change of state, and a sign of life now and then."""

    context: Context
    states: dict[int, RunState] = field(default_factory=dict)
    said: str = ""
    said_at: datetime | None = None

    def show(self, watch: Poller) -> None:
        rows = [run_row(view) for view in watch.views]
        for row in rows:
            if self.states.get(row.index) is not row.state:
                self.states[row.index] = row.state
                self.context.say(_line(row))
                self.said_at = watch.context.now()
        if not watch.over:
            self._remark(rows)

    def _remark(self, rows: list[RunRow]) -> None:
        now = self.context.now()
        steps = [row.step for row in rows if row.state is RunState.running and row.step is not None]
        text = count_line([row.state for row in rows])
        text += f", step {min(steps)} to {max(steps)}" if steps else ""
        if text != self.said and self.said_at is not None and now - self.said_at >= _REMARK:
            self.said, self.said_at = text, now
            self.context.say(text)


def _line(row: RunRow) -> str:
    job = f"  job {row.job}" if row.job else ""
    nodes = f"  on {','.join(row.nodes)}" if row.nodes else ""
    return f"{row.run}  {row.state}{job}{nodes}"
