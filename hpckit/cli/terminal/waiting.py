"""Waits for a launch: reads its record often and asks the scheduler rarely.

Changes nothing: after Ctrl-C the runs continue, on Slurm and on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from hpckit.cli.terminal.live_status import Look, show_status_until_over
from hpckit.cli.terminal.log_printer import LogPrinter
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.model.counted import format_step_of_total
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.operations.checkpoints import add_resume_step_or_refusal
from hpckit.operations.next_step import say_runs_continue_on_ctrl_c
from hpckit.operations.notices.unsent import report_unsent_notices
from hpckit.record.launches import Launch
from hpckit.record.logs import LogFile, find_logs_without_rank_logs, find_rank_logs
from hpckit.report.diagnosis import describe_time_losses_by_kind
from hpckit.report.pending import warn_once_about_stuck_jobs
from hpckit.report.rows import RunRow, build_run_row
from hpckit.report.selection import find_common_overrides, format_override_cells
from hpckit.report.text import format_run_counts, render_status_page
from hpckit.values import dataclass, field, replace
from hpckit.views.accounts import compute_goodput_by_run
from hpckit.views.diagnosis import diagnose_runs
from hpckit.views.launch_view import build_launch_head
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


def wait_for_launch(launch: Launch, context: Context, how: Waiting) -> int:
    """Wait until nothing more will happen; returns 0 if every run completed, else 1.

    Says at the end which notices could not be sent. Ctrl-C ends the wait and raises LeftView, after
    a message; the runs continue.
    """
    if context.has_terminal and not how.quiet and not how.follow:
        look = Look(indices=how.indices, interval_s=_RECORD_S, rhythm=POLL_BACKOFF, until_over=True)
        views = show_status_until_over(launch, look, context)  # as `status --watch`
    else:
        poller = Poller(launch=launch, context=context, indices=how.indices)
        with say_runs_continue_on_ctrl_c(launch, context), _choose_display(poller, how) as show:
            while True:
                began = context.now()
                poller.poll_once()
                show()
                if poller.are_all_runs_over:
                    break
                spent = (context.now() - began).total_seconds()
                context.sleep(max(_RECORD_S, spent * _SHARE))
        views = poller.views
    rows = [build_run_row(view) for view in views]
    if how.follow and len(rows) > 1:
        context.note(format_run_counts([row.state for row in rows]))
    elif not how.quiet and not how.follow:
        ended = add_resume_step_or_refusal(launch, rows, steps=len(rows) <= _JUDGED)
        page = render_status_page(build_launch_head(launch), ended, context.now(), brief=True)
        if len(ended) == 1:
            page = [*page, *(f"warning: {warning}" for warning in ended[0].warnings)]
        show_page(page, context)
    report_unsent_notices(launch, views, context)
    if not how.quiet:
        say = context.note if how.follow else context.say
        for line in describe_time_losses_by_kind(_add_diagnosis_to_rows(launch, views, rows, context)):
            say(line)
    return int(any(view.state is not RunState.completed for view in views))


def _add_diagnosis_to_rows(
    launch: Launch, views: Sequence[RunView], rows: Sequence[RunRow], context: Context
) -> Sequence[RunRow]:
    """Return the rows with what is found of each; none of many runs, as it reads all attempts."""
    if len(rows) > _JUDGED:
        return ()
    try:
        known = diagnose_runs(launch, views, compute_goodput_by_run(launch, views, context.now()))
    except HpckitError as error:  # how the runs ended is known, and is what counts
        context.note(f"warning: what held the runs back is not known: {error.message}")
        return ()
    return [replace(row, findings=known.get(row.index)) for row in rows]


@contextmanager
def _choose_display(watch: Poller, how: Waiting) -> Iterator[Callable[[], None]]:
    if how.quiet:
        yield lambda: None
    elif how.follow:
        yield _Output(watch=watch, lines=_Lines(watch=watch, say=watch.context.note)).show_changes
    else:
        yield _Lines(watch=watch, say=watch.context.say).show_changes


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
        self.common = find_common_overrides((run.overrides for run in launch.runs), launch.swept)

    def show_changes(self) -> None:
        rows = [build_run_row(view) for view in self.watch.views]
        for row in rows:
            self.print_changed_state(row)
        warn_once_about_stuck_jobs(self.watch.views, self.noted, self.say)
        if not self.watch.are_all_runs_over:
            self._print_summary_if_due(rows)

    def print_changed_state(self, row: RunRow) -> None:
        """Print the state of a run if it has changed."""
        if self.states.get(row.index) is not row.state:
            self.states[row.index] = row.state
            self.say(_format_run_state(row, self.common))
            self.said_at = self.watch.context.now()

    def _print_summary_if_due(self, rows: list[RunRow]) -> None:
        now = self.watch.context.now()
        steps = [row.step for row in rows if row.state is RunState.running and row.step is not None]
        text = format_run_counts([row.state for row in rows])
        if steps:
            last = f" to {format_step_of_total(max(steps))}" if max(steps) > min(steps) else ""
            text += f", step {format_step_of_total(min(steps))}{last}"
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

    def show_changes(self) -> None:
        """Show the start of a run before its lines, and its end after them."""
        warn_once_about_stuck_jobs(self.watch.views, self.lines.noted, self.lines.say)
        context, several = self.watch.context, len(self.watch.known) > 1
        for view in self.watch.views:
            index, row = view.record.index, build_run_row(view)
            if index in self.ended:
                continue
            last = index in self.watch.settled
            if not last:
                self.lines.print_changed_state(row)
            run = f".{index}| " if several else ""
            new = LogPrinter(context=context, as_json=False, own=True, run=run)
            printer = self.printers.setdefault(index, new)
            printer.print_new_lines(_choose_shown_logs(self.watch.launch, view), last=last)
            if last:
                self.lines.print_changed_state(row)
                self.ended.add(index)


def _choose_shown_logs(launch: Launch, view: RunView) -> Sequence[LogFile]:
    """Return the log of the run's first rank; if it has none and failed, the logs that say why.

    Output of the local executor concerns all runs, and is not that of one run.
    """
    index = view.record.index
    ranks = find_rank_logs(launch, index)
    if ranks:
        return [ranks[min(ranks)]]
    return (
        find_logs_without_rank_logs(launch, index, job=view.record.job)
        if view.state is RunState.failed
        else ()
    )


def _format_run_state(row: RunRow, common: frozenset[str]) -> str:
    point = "".join(f"  {words}" for words in format_override_cells([row.overrides], common) if words)
    job = f"  job {row.job}" if row.job else ""
    nodes = f"  on {','.join(row.nodes)}" if row.nodes else ""
    return f"{row.run}  {row.state}{point}{job}{nodes}"
