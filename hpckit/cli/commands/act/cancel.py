"""`hpckit cancel`: stops waiting or running runs; safe to repeat."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hpckit.cli.options import (
    add_common,
    add_filters,
    add_flag,
    add_references,
    filter_of,
    launches_of,
)
from hpckit.context import Context
from hpckit.model.counted import counted, ranges
from hpckit.model.plain import plain_fields
from hpckit.model.run import RunView
from hpckit.operations.cancel import Cancellation, cancel_runs, plan_cancellation
from hpckit.report.rows import count_states
from hpckit.report.text import states_text
from hpckit.views.launch_view import Ask, launch_views

EPILOG = """\
examples:
  hpckit cancel .3   one run of the latest launch
  hpckit cancel digits --override 'lr=0.1*'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cancel`."""
    add_references(parser)
    add_flag(parser, "--all", "of all launches there are, instead of one")
    add_filters(parser)
    add_flag(parser, "--dry-run", "say what would be cancelled, and change nothing")
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Cancel runs of a launch, or of all launches; returns 0 also if they had already ended."""
    wanted = filter_of(arguments)
    some = arguments.all or not wanted.all
    selections = list(launches_of(arguments, context, all_of="cancel"))
    # With --all, most launches completed long ago: Slurm need not be asked about those.
    questions = [(one.launch, None if one.index is None else [one.index]) for one in selections]
    views = launch_views(questions, context, ask=Ask.open_runs)
    cancellations = [
        plan_cancellation(*pair, wanted) for pair in zip(selections, views, strict=True)
    ]
    if some:
        cancellations = [one for one in cancellations if one.targets]
        _announce(cancellations, context)
    if not arguments.dry_run:
        cancel_runs(cancellations, context)
    _report(cancellations, arguments, context)
    return 0


def _announce(cancellations: Sequence[Cancellation], context: Context) -> None:
    """Print, before cancelling, which runs a filter has found."""
    for asked in cancellations:
        launch, targets = asked.launch, asked.targets
        counts = states_text(count_states(one.state for one in targets))
        indices = ranges([one.record.index for one in targets])
        context.note(
            f"{len(targets)} of {counted(len(launch.runs), 'run')} of {launch.id}: "
            f"{indices} ({counts})"
        )
    if not cancellations:
        context.note("there is nothing to cancel")


def _report(
    cancellations: Sequence[Cancellation], arguments: argparse.Namespace, context: Context
) -> None:
    outcomes = [
        _outcome(one, dry=arguments.dry_run) for asked in cancellations for one in asked.views
    ]
    if arguments.json:
        launches = {asked.launch.id for asked in cancellations}
        launch = launches.pop() if len(launches) == 1 and not arguments.all else None
        context.say_json({"launch": launch, "runs": outcomes})
        return
    for outcome in outcomes:
        context.say(f"{outcome['run']}: {_SAID[outcome['outcome']]} ({outcome['state']})")


_SAID = {
    "requested": "cancelling",
    "would_request": "would be cancelled",
    "already_ended": "already over",
}


def _outcome(view: RunView, *, dry: bool) -> dict[str, Any]:
    """Return a run as `cancel --json` prints it: `state` is the state before."""
    outcome = "already_ended" if view.settled else "would_request" if dry else "requested"
    fields = "run=record.id index=record.index state job=record.job"
    return plain_fields(view, fields) | {"outcome": outcome}
