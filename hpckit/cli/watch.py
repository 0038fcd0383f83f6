"""`hpckit watch`: waits for a launch and resumes what can be, until all of it is done.

Responsible for when to resume and when to give up; it must not stop anything: after Ctrl-C the
runs go on. Each run is resumed so many times without getting further, and no more.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta

from hpckit.cli.context import Context, add_json, add_output_dir, output_dir
from hpckit.cli.launch import reference
from hpckit.cli.resume import Order, add_judgement, prepare_resume, resume
from hpckit.errors import HeldError, SchedulerAbsentError, SchedulerAwayError, UsageError
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.planning.resume import Tries
from hpckit.record.find import find
from hpckit.record.launches import Launch, load_launch
from hpckit.report.rows import count_states

LOOK = timedelta(seconds=15)
LONGEST_LOOK = timedelta(seconds=60)
"""How often the launch is looked at: soon after something changed, then ever more rarely."""

_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `watch` understands."""
    parser.add_argument(
        "reference", nargs="?", metavar="LAUNCH", help="the launch (default: the latest)"
    )
    parser.add_argument(
        "--max-resumes",
        type=int,
        default=3,
        metavar="N",
        help="how often a run is resumed without getting further (default: 3)",
    )
    add_judgement(parser)
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Watch a launch until nothing more is to be done: 0 where every run completed, else 1."""
    if arguments.max_resumes < 0:
        raise UsageError(
            f"--max-resumes is {arguments.max_resumes}; 0 or more is allowed",
            hint="0 waits and resumes nothing",
        )
    selection = find(arguments.reference, output_dir(arguments, context), cwd=context.cwd)
    if selection.index is not None:
        raise UsageError(
            f"a whole launch is watched, not the run {arguments.reference}",
            hint=f"hpckit watch {selection.launch.id}, or hpckit resume {arguments.reference}",
        )
    watch = Watching(
        launch=selection.launch,
        context=context,
        tries=Tries(limit=arguments.max_resumes),
        order=Order(cancelled=arguments.cancelled, changed_code=arguments.changed_code),
        quiet=arguments.json,
    )
    try:
        watch.follow()
    except KeyboardInterrupt:
        context.note(f"stopped watching {selection.launch.id}; its runs go on")
        return _INTERRUPTED
    _say_end(watch, context, as_json=arguments.json)
    return int(any(view.state is not RunState.completed for view in watch.views))


@dataclass(slots=True, kw_only=True)
class Watching:
    """A launch that is watched; `counts` is how often each run was resumed."""

    launch: Launch
    context: Context
    tries: Tries
    order: Order
    quiet: bool
    counts: Counter[int] = field(default_factory=Counter, init=False)
    views: tuple[RunView, ...] = field(default=(), init=False)
    said: str = field(default="", init=False)

    def follow(self) -> None:
        """Look, resume, and look again, until no run goes on and none is to be resumed."""
        pause = LOOK
        while True:
            before = self.said
            if self._step():
                return
            pause = LOOK if self.said != before else min(pause * 2, LONGEST_LOOK)
            self.context.sleep(pause.total_seconds())

    def _step(self) -> bool:
        """Look once and resume what is to be resumed; returns whether all is over."""
        order = replace(self.order, allowed=self.tries.affordable)
        try:
            seen = prepare_resume(load_launch(self.launch.folder), order, self.context)
            self._see(seen.views)
            if not seen.jobs:
                return not seen.choice.open
            done, started = resume(self.launch, order, self.context)
        except SchedulerAbsentError:
            raise
        except (SchedulerAwayError, HeldError) as error:
            self._remark(error.message)
            return False
        if started is not None:
            self.tries.spend(done.choice.resumed)
            self.counts.update(done.choice.resumed)
            self._say(f"resumed {len(done.choice.resumed)} run(s): {started.where}")
        return False

    def _see(self, views: tuple[RunView, ...]) -> None:
        self.views = views
        counts = count_states(view.state for view in views)
        self._say(", ".join(f"{count} {state}" for state, count in counts.items()))

    def _say(self, text: str) -> None:
        if text != self.said:
            self.said = text
            if not self.quiet:
                self.context.say(text)

    def _remark(self, text: str) -> None:
        if text != self.said:
            self.said = text
            self.context.note(f"warning: {text}; watching goes on")


def _say_end(watch: Watching, context: Context, *, as_json: bool) -> None:
    launch = watch.launch
    if as_json:
        runs = [
            {
                "run": view.record.id,
                "index": view.record.index,
                "state": view.state,
                "resumes": watch.counts[view.record.index],
            }
            for view in watch.views
        ]
        context.say_json({"launch": launch.id, "runs": runs})
        return
    if all(view.state is RunState.completed for view in watch.views):
        context.say(f"{launch.id} is done")
    else:
        context.say(f"{launch.id} is not done, and nothing more is tried")
        context.say(f"  next    hpckit status {reference(launch, context)}   (also: logs, resume)")
