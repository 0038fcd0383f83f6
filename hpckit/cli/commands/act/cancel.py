"""`hpckit cancel`: stops waiting or running runs; safe to repeat."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from hpckit.cli.options import (
    add_common,
    add_filters,
    add_flag,
    add_references,
    filter_of,
    launches_of,
    output_dir,
    readable,
)
from hpckit.context import Context
from hpckit.model.counted import counted, listed, ranges
from hpckit.model.ids import name_of
from hpckit.model.plain import plain_fields
from hpckit.model.run import RunView
from hpckit.operations.cancel import Cancellation, cancel_runs, plan_cancellations
from hpckit.record.lookup import list_launches
from hpckit.report.rows import count_states
from hpckit.report.selection import Filter
from hpckit.report.text import states_text

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
    named = planned = list(plan_cancellations(selections, wanted, context))
    if some:
        named = [planned_ for planned_ in planned if planned_.targets]
        _announce(named, [one.launch.id for one in planned], context)
    if not arguments.dry_run:
        cancel_runs(named, context)
    _report(named, arguments, context)
    _note_older(planned, wanted, arguments, context)
    return 0


def _note_older(
    planned: Sequence[Cancellation], wanted: Filter, arguments: argparse.Namespace, context: Context
) -> None:
    """Note launches under way that a name does not mean, as a later one has that name.

    Such as a rerun of one run: who cancels the name, and sees nothing to do, believes all is over.
    """
    over = {name_of(cancellation.launch.id) for cancellation in planned if not cancellation.targets}
    names = over.intersection(arguments.references)
    meant = {cancellation.launch.id for cancellation in planned}
    folders = list_launches(output_dir(arguments, context)) if names else ()
    older = [
        folder for folder in folders if name_of(folder.name) in names and folder.name not in meant
    ]
    for asked in plan_cancellations(list(readable(older, context)), wanted, context):
        if asked.targets:
            states = states_text(count_states(target.state for target in asked.targets))
            context.note(f"an older launch of this name is under way: {asked.launch.id} ({states})")


def _announce(found: Sequence[Cancellation], meant: Iterable[str], context: Context) -> None:
    """Print, before cancelling, which runs a filter has found."""
    for asked in found:
        launch, targets = asked.launch, asked.targets
        counts = states_text(count_states(target.state for target in targets))
        indices = ranges([target.record.index for target in targets])
        context.note(
            f"{len(targets)} of {counted(len(launch.runs), 'run')} of {launch.id}: "
            f"{indices} ({counts})"
        )
    if not found:
        ids = listed(list(dict.fromkeys(meant)), 5)
        context.note("there is nothing to cancel" + (f" in {ids}" if ids else ""))


def _report(
    cancellations: Sequence[Cancellation], arguments: argparse.Namespace, context: Context
) -> None:
    if arguments.json:
        views = [one for asked in cancellations for one in asked.views]
        outcomes = [_outcome(view, dry=arguments.dry_run) for view in views]
        launches = {asked.launch.id for asked in cancellations}
        launch = launches.pop() if len(launches) == 1 and not arguments.all else None
        context.say_json({"launch": launch, "runs": outcomes})
        return
    for asked in cancellations:
        over = [view for view in asked.views if view.settled]
        if len(over) > 1:
            states = states_text(count_states(view.state for view in over))
            context.say(f"{asked.launch.id}: {len(over)} runs already over ({states})")
        for view in asked.targets if len(over) > 1 else asked.views:
            outcome = _outcome(view, dry=arguments.dry_run)
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
