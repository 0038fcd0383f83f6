"""`hpckit watch`: waits for a launch and resumes what can be resumed, until all of it is done.

Stops nothing: after Ctrl-C the runs continue. As in the supervisor, the runs' own budgets
(recovery) limit how often they are resumed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import timedelta

from hpckit.cli.options import add_common_options, add_resume_options, resolve_reference_to_change
from hpckit.context import Context
from hpckit.errors import HeldError, SchedulerAbsentError, SchedulerAwayError, UsageError
from hpckit.model.counted import format_count
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.operations.next_step import launch_reference, say_runs_continue_on_ctrl_c
from hpckit.operations.notices.tell import announce_launch_end, resend_unsent_notices
from hpckit.operations.resume import (
    Order,
    describe_started_runs,
    format_skipped_runs,
    has_unsubmitted_jobs,
    prepare_resume,
    resume_runs,
)
from hpckit.planning.recovery.resume import Skipped
from hpckit.record.launches import Launch, load_launch
from hpckit.report.pending import format_resume_decision, warn_once_about_stuck_jobs
from hpckit.report.rows import count_runs_by_state
from hpckit.report.text import format_state_counts
from hpckit.values import dataclass, field

LOOK = timedelta(seconds=15)
LONGEST_LOOK = timedelta(seconds=60)
"""The longest pause between two looks; pauses are short after a change and then get longer."""


EPILOG = """\
examples:
  hpckit watch   the latest launch, until it is done
  hpckit watch digits
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `watch`."""
    parser.add_argument("reference", nargs="?", metavar="LAUNCH", help="the launch (default: the latest)")
    add_resume_options(parser)
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Watch a launch until nothing is left to do; returns 0 if every run completed, else 1."""
    selection = resolve_reference_to_change(arguments, context)
    if selection.index is not None:
        raise UsageError(
            f"watch takes a whole launch, not the run {arguments.reference}",
            hint=f"hpckit watch {selection.launch.id}, or hpckit resume {arguments.reference}",
        )
    watch = Watching(
        launch=selection.launch,
        context=context,
        order=Order(cancelled=arguments.cancelled, changed_code=arguments.changed_code, bounded=True),
        quiet=arguments.json,
    )
    with say_runs_continue_on_ctrl_c(selection.launch, context):
        watch.resume_until_done()
    announce_launch_end(watch.launch, watch.views, context)
    resend_unsent_notices(watch.launch, context)
    _print_watch_result(watch, context, as_json=arguments.json)
    return int(any(view.state is not RunState.completed for view in watch.views))


@dataclass(slots=True, kw_only=True)
class Watching:
    """A watched launch; `counts` is how often each run was resumed."""

    launch: Launch
    context: Context
    order: Order
    quiet: bool
    counts: Counter[int] = field(default_factory=Counter, init=False)
    views: tuple[RunView, ...] = field(default=(), init=False)
    skipped: tuple[Skipped, ...] = field(default=(), init=False)
    said: str = field(default="", init=False)
    noted: set[str] = field(default_factory=set, init=False)

    def resume_until_done(self) -> None:
        """Look and resume repeatedly, until no run continues and none can be resumed."""
        pause = LOOK
        while True:
            before = self.said
            if self._look_and_resume():
                return
            pause = LOOK if self.said != before else min(pause * 2, LONGEST_LOOK)
            self.context.sleep(pause.total_seconds())

    def _look_and_resume(self) -> bool:
        """Look once and resume what can be resumed; return whether all is over."""
        try:
            seen = prepare_resume(load_launch(self.launch.folder), self.order, self.context)
            self.views, self.skipped = seen.views, seen.choice.skipped
            self._print_if_new(format_state_counts(count_runs_by_state(view.state for view in seen.views)))
            if not self.quiet:
                warn_once_about_stuck_jobs(self.views, self.noted, self.context.say)
            if not seen.jobs and not has_unsubmitted_jobs(seen.launch):
                return not seen.choice.open
            done, started = resume_runs(self.launch, self.order, self.context)
        except SchedulerAbsentError:
            raise
        except (SchedulerAwayError, HeldError) as error:
            if error.message != self.said:
                self.said = error.message
                self.context.note(f"warning: {error.message}; still watching")
            return False
        if started is not None:
            self.counts.update(done.choice.resumed)
            word, count = describe_started_runs(done, started)
            self._print_if_new(f"{word} {format_count(count, 'run')}: {started.where}")
        return False

    def _print_if_new(self, text: str) -> None:
        if text != self.said:
            self.said = text
            if not self.quiet:
                self.context.say(text)


def _print_watch_result(watch: Watching, context: Context, *, as_json: bool) -> None:
    launch = watch.launch
    reasons = {skip.index: format_resume_decision(skip.why) for skip in watch.skipped}
    if as_json:
        runs = [
            {
                "run": view.record.id,
                "index": view.record.index,
                "state": view.state,
                "resumes": watch.counts[view.record.index],
                "reason": reasons.get(view.record.index),
            }
            for view in watch.views
        ]
        context.say_json({"launch": launch.id, "runs": runs})
        return
    if all(view.state is RunState.completed for view in watch.views):
        context.say(f"{launch.id} is done")
    else:
        context.say(f"{launch.id} is not done, and nothing more can be resumed")
        for line in format_skipped_runs(watch.skipped):
            context.say(f"  left    {line}")
        context.say(f"  next    hpckit status {launch_reference(launch, context)}   (also: logs, resume)")
