"""Waits for a launch: follows its record closely and asks the scheduler rarely.

Responsible for when to look and when it is over, and for showing that; it must not change
anything: after Ctrl-C the runs go on, on Slurm and on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hpckit.cli.context import Context
from hpckit.cli.freshness import Freshness
from hpckit.cli.next_step import only_a_view
from hpckit.cli.show import launch_head, show_page
from hpckit.cli.views import Ask, launch_view
from hpckit.model.launch import ClusterKind
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.record.launches import Launch
from hpckit.report.rows import RunRow, run_row
from hpckit.report.text import Page, count_line, drawn, status_page


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How long the scheduler is left in peace: `first`, then twice as long each time, to `longest`.

    A run that changed brings back `first`; `shortest` counts where a record says ended.
    """

    first: timedelta
    longest: timedelta
    shortest: timedelta


RHYTHM = Rhythm(
    first=timedelta(seconds=15), longest=timedelta(seconds=60), shortest=timedelta(seconds=5)
)
_SLOW = 10
"""A scheduler that takes its time is asked so much more rarely: it serves the whole cluster."""

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
    watch = Watch(launch=launch, context=context, indices=indices)
    with only_a_view(launch, context), _display(context, quiet=quiet) as show:
        _follow(watch, show)
    if not quiet and not context.terminal:
        show_page(_page(watch), context)
    return int(any(view.state is not RunState.completed for view in watch.views))


def _follow(watch: Watch, show: Callable[[Watch], None]) -> None:
    while True:
        began = watch.context.now()
        watch.look()
        show(watch)
        if watch.over:
            return
        spent = (watch.context.now() - began).total_seconds()
        watch.context.sleep(max(_RECORD_S, spent * _SHARE))


@dataclass(slots=True, kw_only=True)
class Watch:
    """What is known of a launch, or of some runs of it, while it is waited for."""

    launch: Launch
    context: Context
    indices: Sequence[int] | None = None
    rhythm: Rhythm = RHYTHM
    known: dict[int, RunView] = field(default_factory=dict, init=False)
    settled: set[int] = field(default_factory=set, init=False)
    asked_at: datetime = field(init=False)
    pause: timedelta = field(init=False)
    doubted_at: datetime | None = field(default=None, init=False)
    queue_at: datetime | None = field(default=None, init=False)
    warning: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.asked_at = self.context.now()
        self.pause = self.rhythm.first

    @property
    def views(self) -> tuple[RunView, ...]:
        """The latest view of every run."""
        return tuple(self.known[index] for index in sorted(self.known))

    @property
    def open(self) -> tuple[int, ...]:
        """The runs of which more will be heard."""
        every = range(len(self.launch.runs)) if self.indices is None else self.indices
        return tuple(index for index in every if index not in self.settled)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return not self.open

    def look(self) -> None:
        """Read the record of the open runs, and ask the scheduler where it is time to."""
        ask = Ask.open_runs if self._is_due else Ask.nothing
        began = self.context.now()
        seen = launch_view(
            self.launch,
            self.context,
            ask=ask,
            indices=self.open,
            # An end is final by a word of Slurm's that is younger than the end itself.
            freshness=Freshness(not_before=self.doubted_at),
        )
        if ask is not Ask.nothing:
            self.asked_at = self.context.now()
            spent = self.asked_at - began
            self.pause = max(min(self.pause * 2, self.rhythm.longest), spent * _SLOW)
            self.queue_at = seen.asked_at or self.queue_at
            self._warn(seen.warning)
        young = seen.asked_at is None or seen.asked_at >= (self.doubted_at or began)
        for view in seen.runs:
            self._take(view, final=ask is not Ask.nothing and young)
        open_views = (self.known[index] for index in self.open)
        doubted = any(view.settled for view in open_views)
        self.doubted_at = (self.doubted_at or self.context.now()) if doubted else None

    @property
    def _on_slurm(self) -> bool:
        return self.launch.cluster.kind is ClusterKind.slurm

    @property
    def _is_due(self) -> bool:
        since = self.context.now() - self.asked_at
        return self._on_slurm and since >= (self.rhythm.shortest if self.doubted_at else self.pause)

    def _take(self, view: RunView, *, final: bool) -> None:
        """Take a view; an end by our record alone is final where Slurm cannot begin anew."""
        index = view.record.index
        before = self.known.get(index)
        if before is not None and before.record.state is not view.record.state:
            self.pause = self.rhythm.first
        if before is not None and view.observation is None and not final:
            view = replace(view, observation=before.observation)
        self.known[index] = view
        if view.settled and (
            final or not self._on_slurm or view.record.state is RunState.completed
        ):
            self.settled.add(index)

    def _warn(self, warning: str) -> None:
        if warning and warning != self.warning:
            self.context.note(f"warning: {warning}")
        self.warning = warning


@contextmanager
def _display(context: Context, *, quiet: bool) -> Iterator[Callable[[Watch], None]]:
    if quiet:
        yield lambda _: None
    elif not context.terminal:
        yield _Lines(context=context).show
    else:
        from rich.console import Console  # noqa: PLC0415  # only where a terminal draws
        from rich.live import Live  # noqa: PLC0415

        console = Console(file=context.stdout, highlight=False)
        with Live(console=console, auto_refresh=False, transient=False) as live:
            yield lambda watch: live.update(drawn(_page(watch)), refresh=True)


def _page(watch: Watch) -> Page:
    rows = [run_row(view) for view in watch.views]
    page = status_page(launch_head(watch.launch), _most_telling(rows, watch), watch.context.now())
    if len(rows) <= _SHOWN_LIVE or watch.over:
        return page
    return [*page, f"of all {count_line([row.state for row in rows])}"]


def _most_telling(rows: list[RunRow], watch: Watch) -> list[RunRow]:
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

    def show(self, watch: Watch) -> None:
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
