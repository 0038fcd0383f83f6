"""`hpckit status --watch`, and --wait on a terminal: a live view of a launch until all has ended.

The record is read at every look, the scheduler is asked rarely. Changes nothing: after Ctrl-C the
runs continue.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial

from hpckit.cli.options import parse_duration_to_seconds
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.operations.next_step import say_runs_continue_on_ctrl_c
from hpckit.record.launches import Launch, read_launch_history
from hpckit.report.live import Listed, format_progress_line, progress_to_json, render_live_page
from hpckit.report.rows import RunRow
from hpckit.report.selection import Filter, SortKey, sort_rows
from hpckit.values import dataclass, field
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import build_launch_head, build_launch_view
from hpckit.views.launch_watch import POLL_BACKOFF, LaunchWatch
from hpckit.views.poller import PollBackoff, Poller
from hpckit.views.scheduler import Scheduler

_NEXT_PAGE = frozenset({"n", " ", "\x1b[6~"})
_PREVIOUS_PAGE = frozenset({"p", "b", "\x1b[5~"})
_QUIT = frozenset({"q"})
_SEQUENCE_BYTES = 8
"""The most bytes that one key sends, as PgDn does."""

_Wait = Callable[[float], str]
"""Waits this many seconds for a key and returns it; empty if none was pressed."""

_TERMINAL_S = 2.0
_LINES_S = 30.0
_SHORTEST_S = 0.5
_SHARE = 10
"""At most one part in ten of the time is spent reading."""

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What to show: the runs of `indices` (None: all); by name only those that match `wanted`.

    `interval_s` None and `limit` 0 stand for defaults that suit the output and the screen; `rhythm`
    is how often Slurm is asked. `until_over` is for waiting: then to quit means to leave the view,
    as with Ctrl-C, and the page vanishes at the end, because the result is shown then.
    """

    indices: Sequence[int] | None = None
    wanted: Filter = Filter()
    key: SortKey | None = None
    limit: int = 0
    interval_s: float | None = None
    as_json: bool = False
    rhythm: PollBackoff = POLL_BACKOFF
    until_over: bool = False


def parse_watch_interval(text: str) -> float | None:
    """Return the seconds of `--watch [TIME]`, None if not given; raises UsageError."""
    if not text:
        return None
    try:
        found = parse_duration_to_seconds(text)
    except ArgumentTypeError:
        found = -1.0
    if not _SHORTEST_S <= found < float("inf"):
        raise UsageError(
            f"--watch is {text!r}; it must be a time of {_SHORTEST_S} seconds or more, such as 60, 90s or 2m",
            hint="leave the time out for the default",
        )
    return found


def show_status_until_over(launch: Launch, look: Look, context: Context) -> Sequence[RunView]:
    """Show the state of a launch repeatedly, until nothing more will happen.

    Returns the views of its runs at that point. Ctrl-C raises LeftView, after a message that the
    runs continue.
    """
    live = _Live(launch=launch, look=look, context=context)
    with (
        say_runs_continue_on_ctrl_c(launch, context),
        _open_key_reader(context) as wait,
        _open_display(live) as show,
    ):
        while True:
            began = context.now()
            live.watched.refresh_once()
            show()
            if not live.may_continue():
                return live.poller.views
            spent = (context.now() - began).total_seconds()
            pause = timedelta(seconds=max(live.interval_s, spent * _SHARE))
            if not _wait_and_turn_pages(live, pause, wait, show):
                if look.until_over:
                    raise KeyboardInterrupt
                return live.poller.views


def _wait_and_turn_pages(live: _Live, pause: timedelta, wait: _Wait, show: Callable[[], None]) -> bool:
    """Wait until the next look, turning pages meanwhile; False if the user quits."""
    until = live.context.now() + pause
    while key := wait(max((until - live.context.now()).total_seconds(), 0)):
        if key in _QUIT:
            return False
        if key in _NEXT_PAGE | _PREVIOUS_PAGE:
            live.page += 1 if key in _NEXT_PAGE else -1
            show()
    return True


@dataclass(slots=True, kw_only=True)
class _Live:
    """A launch in a live view, and the `page` of its runs.

    `auto_resume_at` is when an auto-resume job was last seen.
    """

    launch: Launch
    look: Look
    context: Context
    watched: LaunchWatch = field(init=False)
    auto_resume_at: datetime | None = field(default=None, init=False)
    page: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.watched = LaunchWatch(
            launch=self.launch,
            context=self.context,
            indices=self._indices_with_wanted_overrides,
            rhythm=self.look.rhythm,
        )

    @property
    def poller(self) -> Poller:
        """The runs, as they were seen last."""
        return self.watched.poller

    @property
    def interval_s(self) -> float:
        """How many seconds to wait between two looks."""
        if self.look.interval_s is not None:
            return self.look.interval_s
        lines = self.look.as_json or not self.context.has_terminal
        return _LINES_S if lines else _TERMINAL_S

    def may_continue(self) -> bool:
        """Whether more may happen: a run is open, or an auto-resume job waits."""
        if not self.poller.are_all_runs_over:
            return True
        views = self.poller.views
        left = [view.record.index for view in views if view.state is not RunState.completed]
        if not left or read_launch_history(self.launch).auto_resume_job is None:
            return False
        now = self.context.now()
        if self.auto_resume_at is not None and now - self.auto_resume_at < POLL_BACKOFF.first:
            return True
        self.auto_resume_at = now
        seen = build_launch_view(self.launch, self.context, indices=left[:1], freshness=Freshness())
        waits = seen.auto_resume is not None or seen.scheduler is Scheduler.unreachable
        return waits or self.watched.current_events_files_stat != self.watched.mark

    def select_page_rows(self, rows: Sequence[RunRow], room: int) -> Listed:
        """Return a page of the runs to show by name: those in the wanted states, else running."""
        wanted, key = self.look.wanted, self.look.key
        states = wanted.states or {RunState.running}
        some = [row for row in rows if row.state in states]
        if key is not None:
            with suppress(UsageError):  # a metric that no run has logged yet
                some = sort_rows(some, key, self.context.now())
        room = self.look.limit or room
        self.page = max(min(self.page, (len(some) - 1) // room), 0)
        first = self.page * room
        return Listed(rows=some[first : first + room], first=first, total=len(some))

    @property
    def _indices_with_wanted_overrides(self) -> Sequence[int] | None:
        """The runs with the wanted overrides: unlike states, these do not change."""
        wanted = Filter(overrides=self.look.wanted.overrides)
        every = range(len(self.launch.runs)) if self.look.indices is None else self.look.indices
        heads = [self.launch.runs[index] for index in every]
        return [head.index for head in heads if wanted.matches_run(RunState.pending, head.overrides)]


@contextmanager
def _open_display(live: _Live) -> Iterator[Callable[[], None]]:
    context = live.context
    if live.look.as_json or not context.has_terminal:
        said: tuple[object, ...] = ()

        def say() -> None:
            """Print a line if anything has changed."""
            nonlocal said
            progress = live.watched.estimate_progress(live.watched.run_rows)
            if (progress.states, progress.satellites) == said:
                return
            said = (progress.states, progress.satellites)
            if live.look.as_json:
                context.say(context.json_line(progress_to_json(live.launch.id, progress)))
            else:
                context.say(format_progress_line(progress))

        yield say
        return
    from hpckit.cli.terminal.screen import open_live_screen  # noqa: PLC0415  # it imports rich

    head = build_launch_head(live.launch)

    def show() -> None:
        rows = live.watched.run_rows
        progress = live.watched.estimate_progress(rows)
        taken = len(set(progress.states)) + len(progress.failures) + bool(progress.satellites)
        room = max(screen.height - taken - _SHOWN, 1)
        shown = live.select_page_rows(rows, min(room, _SHOWN))
        screen.show(render_live_page(head, progress, shown))

    with open_live_screen(context.stdout, stays=not live.look.until_over) as screen:
        yield show


@contextmanager
def _open_key_reader(context: Context) -> Iterator[_Wait]:
    """Give what waits for a key; without a user at the terminal it only sleeps."""
    there = context.has_terminal and sys.stdin is not None and sys.stdin.isatty()
    # In the background (a shell's `&`) a process that touches the terminal is stopped.
    if not there or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield partial(_sleep_without_keys, context)
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield partial(_read_key, terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _sleep_without_keys(context: Context, seconds: float) -> str:
    context.sleep(seconds)
    return ""


def _read_key(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], seconds)
    return os.read(terminal, _SEQUENCE_BYTES).decode(errors="replace") if ready else ""
