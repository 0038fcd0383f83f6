"""`hpckit cancel`: stops waiting or running runs; safe to repeat."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from hpckit.cli.options import (
    add_common_options,
    add_filter_options,
    add_flag,
    add_launches_or_runs_argument,
    build_filter,
    choose_output_dir,
    load_readable_launches,
    select_launches_or_runs,
)
from hpckit.context import Context
from hpckit.model.counted import format_count, format_ranges, format_short_list
from hpckit.model.ids import extract_name_from_launch_id
from hpckit.model.plain import attributes_to_json
from hpckit.model.run import RunView
from hpckit.operations.cancel import Cancellation, cancel_runs, plan_cancellations
from hpckit.record.lookup import list_own_launches
from hpckit.report.rows import count_runs_by_state
from hpckit.report.selection import Filter
from hpckit.report.text import format_state_counts

EPILOG = """\
examples:
  hpckit cancel .3   one run of the latest launch
  hpckit cancel digits --override 'lr=0.1*'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cancel`."""
    add_launches_or_runs_argument(parser)
    add_flag(parser, "--all", "of all launches there are, instead of one")
    add_filter_options(parser)
    add_flag(parser, "--dry-run", "say what would be cancelled, and change nothing")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Cancel runs of a launch, or of all launches; returns 0 also if they had already ended."""
    wanted = build_filter(arguments)
    some = arguments.all or not wanted.takes_all_runs
    selections = list(select_launches_or_runs(arguments, context, all_of="cancel"))
    named = planned = list(plan_cancellations(selections, wanted, context))
    if some:
        named = [planned_ for planned_ in planned if planned_.targets]
        _announce_cancellations(named, [one.launch.id for one in planned], context)
    if not arguments.dry_run:
        cancel_runs(named, context)
    _tell_of_older_launches_running(planned, wanted, arguments, context)
    _print_cancellations(named, arguments, context)
    return 0


def _tell_of_older_launches_running(
    planned: Sequence[Cancellation], wanted: Filter, arguments: argparse.Namespace, context: Context
) -> None:
    """Note launches under way that a name does not select, as a later launch has that name.

    Such as a rerun of one run: without the note a user would believe that everything is over.
    """
    over = {
        extract_name_from_launch_id(cancellation.launch.id)
        for cancellation in planned
        if not cancellation.targets
    }
    names = over.intersection(arguments.references)
    meant = {cancellation.launch.id for cancellation in planned}
    folders = list_own_launches(choose_output_dir(arguments, context)) if names else ()
    older = [
        folder
        for folder in folders
        if extract_name_from_launch_id(folder.name) in names and folder.name not in meant
    ]
    for asked in plan_cancellations(list(load_readable_launches(older, context)), wanted, context):
        if asked.targets:
            states = format_state_counts(count_runs_by_state(target.state for target in asked.targets))
            context.note(f"an older launch of this name is under way: {asked.launch.id} ({states})")


def _announce_cancellations(found: Sequence[Cancellation], meant: Iterable[str], context: Context) -> None:
    for asked in found:
        launch, targets = asked.launch, asked.targets
        counts = format_state_counts(count_runs_by_state(target.state for target in targets))
        indices = format_ranges([target.record.index for target in targets])
        context.note(
            f"{len(targets)} of {format_count(len(launch.runs), 'run')} of {launch.id}: {indices} ({counts})"
        )
    if not found:
        ids = format_short_list(list(dict.fromkeys(meant)), 5)
        context.note("there is nothing to cancel" + (f" in {ids}" if ids else ""))


def _print_cancellations(
    cancellations: Sequence[Cancellation], arguments: argparse.Namespace, context: Context
) -> None:
    if arguments.json:
        views = [view for asked in cancellations for view in asked.views]
        outcomes = [_cancellation_to_json(view, dry=arguments.dry_run) for view in views]
        launches = {asked.launch.id for asked in cancellations}
        launch = launches.pop() if len(launches) == 1 and not arguments.all else None
        context.say_json({"launch": launch, "runs": outcomes})
        return
    for asked in cancellations:
        over = [view for view in asked.views if view.can_no_longer_change]
        if len(over) > 1:
            states = format_state_counts(count_runs_by_state(view.state for view in over))
            context.say(f"{asked.launch.id}: {len(over)} runs already over ({states})")
        for view in asked.targets if len(over) > 1 else asked.views:
            outcome = _cancellation_to_json(view, dry=arguments.dry_run)
            context.say(f"{outcome['run']}: {_SAID[outcome['outcome']]} ({outcome['state']})")


_SAID = {"requested": "cancelling", "would_request": "would be cancelled", "already_ended": "already over"}


def _cancellation_to_json(view: RunView, *, dry: bool) -> dict[str, Any]:
    """Return a run as `cancel --json` prints it: `state` is the state before."""
    outcome = "already_ended" if view.can_no_longer_change else "would_request" if dry else "requested"
    fields = "run=record.id index=record.index state job=record.job"
    return attributes_to_json(view, fields) | {"outcome": outcome}
