"""Waits for a launch: reads its record often and asks the scheduler rarely.

Changes nothing: after Ctrl-C the runs continue, on Slurm and on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from hpckit.cli.terminal.live_status import Look, follow
from hpckit.cli.terminal.log_printer import LogPrinter
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.model.counted import steps_text
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.operations.checkpoints import with_resume_steps
from hpckit.operations.next_step import only_a_view
from hpckit.operations.notices.unsent import say_unsent
from hpckit.record.launches import Launch
from hpckit.record.logs import LogFile, other_logs, rank_logs
from hpckit.report.diagnosis import held_back_lines
from hpckit.report.pending import say_lasting
from hpckit.report.rows import RunRow, run_row
from hpckit.report.selection import common_words, override_cells
from hpckit.report.text import count_line, status_page
from hpckit.values import dataclass, field, replace
from hpckit.views.accounts import accounts
from hpckit.views.diagnosis import findings
from hpckit.views.launch_view import launch_head
from hpckit.views.poller import POLL_BACKOFF, Poller

_RECORD_S = 0.5
_SHARE = 10
"""At most one part in ten of the time is spent reading: sweeps on slow file systems."""

_REMARK = timedelta(seconds=30)
_JUDGED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What to wait for, and what to show meanwhile.

    `indices` are the runs, all by default. With `quiet` nothing is shown; with `follow` the output
    of the runs is shown, and their states as single lines on standard error.
    """

    indices: Sequence[int] | None = None
    quiet: bool = False
    follow: bool = False


def wait(launch: Launch, context: Context, how: Waiting) -> int:
    """Wait until nothing more will happen; returns 0 if every run completed, else 1.

    Says at the end which notices could not be sent. Ctrl-C ends the wait and raises LeftView, after
    a message; the runs continue.
    """
    if context.terminal and not how.quiet and not how.follow:
        look = Look(indices=how.indices, interval_s=_RECORD_S, rhythm=POLL_BACKOFF, until_over=True)
        views = follow(launch, look, context)  # as `status --watch`
    else:
        poller = Poller(launch=launch, context=context, indices=how.indices)
        with only_a_view(launch, context), _display(poller, how) as show:
            while True:
                began = context.now()
                poller.look()
                show()
                if poller.over:
                    break
                spent = (context.now() - began).total_seconds()
                context.sleep(max(_RECORD_S, spent * _SHARE))
        views = poller.views
    rows = [run_row(view) for view in views]
    if how.follow and len(rows) > 1:
        context.note(count_line([row.state for row in rows]))
    elif not how.quiet and not how.follow:
        ended = with_resume_steps(launch, rows, steps=len(rows) <= _JUDGED)
        page = status_page(launch_head(launch), ended, context.now(), brief=True)
        if len(ended) == 1:
            page = [*page, *(f"warning: {warning}" for warning in ended[0].warnings)]
        show_page(page, context)
    say_unsent(launch, views, context)
    if not how.quiet:
        say = context.note if how.follow else context.say
        for line in held_back_lines(_judged(launch, views, rows, context)):
            say(line)
    return int(any(view.state is not RunState.completed for view in views))


def _judged(
    launch: Launch, views: Sequence[RunView], rows: Sequence[RunRow], context: Context
) -> Sequence[RunRow]:
    """Return the rows with what is found of each; none of many runs, as it reads all attempts."""
    if len(rows) > _JUDGED:
        return ()
    try:
        known = findings(launch, views, accounts(launch, views, context.now()))
    except HpckitError as error:  # how the runs ended is known, and is what counts
        context.note(f"warning: what held the runs back is not known: {error.message}")
        return ()
    return [replace(row, findings=known.get(row.index)) for row in rows]


@contextmanager
def _display(watch: Poller, how: Waiting) -> Iterator[Callable[[], None]]:
    if how.quiet:
        yield lambda: None
    elif how.follow:
        yield _Output(watch=watch, lines=_Lines(watch=watch, say=watch.context.note)).show
    else:
        yield _Lines(watch=watch, say=watch.context.say).show


@dataclass(slots=True, kw_only=True)
class _Lines:
    """Plain lines: one for each change of state, and a summary now and then."""

    watch: Poller
    say: Callable[[str], None]
    states: dict[int, RunState] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)
    common: frozenset[str] = field(init=False)
    said: str = ""
    said_at: datetime | None = None

    def __post_init__(self) -> None:
        launch = self.watch.launch
        self.common = common_words((run.overrides for run in launch.runs), launch.swept)

    def show(self) -> None:
        rows = [run_row(view) for view in self.watch.views]
        for row in rows:
            self.tell(row)
        say_lasting(self.watch.views, self.noted, self.say)
        if not self.watch.over:
            self._remark(rows)

    def tell(self, row: RunRow) -> None:
        """Print the state of a run if it has changed."""
        if self.states.get(row.index) is not row.state:
            self.states[row.index] = row.state
            self.say(_line(row, self.common))
            self.said_at = self.watch.context.now()

    def _remark(self, rows: list[RunRow]) -> None:
        now = self.watch.context.now()
        steps = [row.step for row in rows if row.state is RunState.running and row.step is not None]
        text = count_line([row.state for row in rows])
        if steps:
            last = f" to {steps_text(max(steps))}" if max(steps) > min(steps) else ""
            text += f", step {steps_text(min(steps))}{last}"
        if text != self.said and self.said_at is not None and now - self.said_at >= _REMARK:
            self.said, self.said_at = text, now
            self.say(text)


@dataclass(slots=True, kw_only=True)
class _Output:
    """The output of the runs, as `logs --follow` shows it, and their states on standard error."""

    watch: Poller
    lines: _Lines
    printers: dict[int, LogPrinter] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def show(self) -> None:
        """Show the start of a run before its lines, and its end after them."""
        say_lasting(self.watch.views, self.lines.noted, self.lines.say)
        context, several = self.watch.context, len(self.watch.known) > 1
        for view in self.watch.views:
            index, row = view.record.index, run_row(view)
            if index in self.ended:
                continue
            last = index in self.watch.settled
            if not last:
                self.lines.tell(row)
            run = f".{index}| " if several else ""
            new = LogPrinter(context=context, as_json=False, own=True, run=run)
            printer = self.printers.setdefault(index, new)
            printer.print(_logs(self.watch.launch, view), last=last)
            if last:
                self.lines.tell(row)
                self.ended.add(index)


def _logs(launch: Launch, view: RunView) -> Sequence[LogFile]:
    """Return the log of the run's first rank; if it has none and failed, the logs that say why.

    Output of the local executor concerns all runs, and is not that of one run.
    """
    index = view.record.index
    ranks = rank_logs(launch, index)
    if ranks:
        return [ranks[min(ranks)]]
    return other_logs(launch, index, job=view.record.job) if view.state is RunState.failed else ()


def _line(row: RunRow, common: frozenset[str]) -> str:
    point = "".join(f"  {words}" for words in override_cells([row.overrides], common) if words)
    job = f"  job {row.job}" if row.job else ""
    nodes = f"  on {','.join(row.nodes)}" if row.nodes else ""
    return f"{row.run}  {row.state}{point}{job}{nodes}"
