"""`hpckit watch`: waits for a launch and resumes what can be resumed, until all of it is done.

Stops nothing: after Ctrl-C the runs continue. As in the supervisor, the runs' own budgets
(recovery) limit how often they are resumed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import timedelta

from hpckit.cli.options import add_common, add_judgement, find_named
from hpckit.context import Context
from hpckit.errors import HeldError, SchedulerAbsentError, SchedulerAwayError, UsageError
from hpckit.model.counted import counted
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.operations.next_step import only_a_view, reference
from hpckit.operations.notices.tell import send_kept, tell_rest
from hpckit.operations.resume import (
    Order,
    left_alone,
    prepare_resume,
    resume,
    waits_for_room,
    what_started,
)
from hpckit.planning.recovery.resume import Skipped
from hpckit.record.launches import Launch, load_launch
from hpckit.report.pending import say_lasting, standing_text
from hpckit.report.rows import count_states
from hpckit.report.text import states_text
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
    parser.add_argument(
        "reference", nargs="?", metavar="LAUNCH", help="the launch (default: the latest)"
    )
    add_judgement(parser)
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Watch a launch until nothing is left to do; returns 0 if every run completed, else 1."""
    selection = find_named(arguments, context)
    if selection.index is not None:
        raise UsageError(
            f"a whole launch is watched, not the run {arguments.reference}",
            hint=f"hpckit watch {selection.launch.id}, or hpckit resume {arguments.reference}",
        )
    watch = Watching(
        launch=selection.launch,
        context=context,
        order=Order(
            cancelled=arguments.cancelled, changed_code=arguments.changed_code, bounded=True
        ),
        quiet=arguments.json,
    )
    with only_a_view(selection.launch, context):
        watch.follow()
    tell_rest(watch.launch, watch.views, context)
    send_kept(watch.launch, context)
    _say_end(watch, context, as_json=arguments.json)
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

    def follow(self) -> None:
        """Look and resume repeatedly, until no run continues and none can be resumed."""
        pause = LOOK
        while True:
            before = self.said
            if self._step():
                return
            pause = LOOK if self.said != before else min(pause * 2, LONGEST_LOOK)
            self.context.sleep(pause.total_seconds())

    def _step(self) -> bool:
        """Look once and resume what can be resumed; return whether all is over."""
        try:
            seen = prepare_resume(load_launch(self.launch.folder), self.order, self.context)
            self.views, self.skipped = seen.views, seen.choice.skipped
            self._say(states_text(count_states(view.state for view in seen.views)))
            if not self.quiet:
                say_lasting(self.views, self.noted, self.context.say)
            if not seen.jobs and not waits_for_room(seen.launch):
                return not seen.choice.open
            done, started = resume(self.launch, self.order, self.context)
        except SchedulerAbsentError:
            raise
        except (SchedulerAwayError, HeldError) as error:
            if error.message != self.said:
                self.said = error.message
                self.context.note(f"warning: {error.message}; still watching")
            return False
        if started is not None:
            self.counts.update(done.choice.resumed)
            word, count = what_started(done, started)
            self._say(f"{word} {counted(count, 'run')}: {started.where}")
        return False

    def _say(self, text: str) -> None:
        if text != self.said:
            self.said = text
            if not self.quiet:
                self.context.say(text)


def _say_end(watch: Watching, context: Context, *, as_json: bool) -> None:
    launch = watch.launch
    reasons = {skip.index: standing_text(skip.why) for skip in watch.skipped}
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
        context.say(f"{launch.id} is not done, and nothing more is tried")
        for line in left_alone(watch.skipped):
            context.say(f"  left    {line}")
        context.say(f"  next    hpckit status {reference(launch, context)}   (also: logs, resume)")
