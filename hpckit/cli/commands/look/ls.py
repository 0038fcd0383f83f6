"""`hpckit ls`: lists launches, newest first, from the record alone.

Never asks the scheduler, however many launches there are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from hpckit.cli.gc_pause import pause_garbage_collector
from hpckit.cli.options import (
    add_common_options,
    add_filter_options,
    add_sort_option,
    build_filter,
    choose_output_dir,
)
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import HpckitError, UsageError
from hpckit.model.ids import extract_name_from_launch_id
from hpckit.record.launches import load_launch_of_any_owner
from hpckit.record.lookup import empty_reference_error, list_all_launches
from hpckit.report.machine import launches_to_json
from hpckit.report.rows import count_runs_by_state
from hpckit.report.selection import Filter, LaunchLine, parse_sort_key, sort_launches
from hpckit.report.text import render_launches_page
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import Ask, build_launch_head, build_launch_view

SHOWN = 20


EPILOG = """\
examples:
  hpckit ls   the newest launches
  hpckit ls 'digits*' --state failed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ls`."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only launches whose id begins with this, or whose id or name matches it as a glob",
    )
    parser.add_argument(
        *("-n", "--limit"),
        dest="count",
        metavar="N",
        type=int,
        default=SHOWN,
        help="how many launches to show, newest first; 0 for all (default: %(default)s)",
    )
    add_filter_options(parser)
    add_sort_option(parser, "Columns: created, name, runs, a state (how many), a metric (its best run)")
    add_common_options(parser)


@pause_garbage_collector()
def run(arguments: argparse.Namespace, context: Context) -> int:
    """List launches; always returns 0, also if there are none."""
    if arguments.count < 0:
        raise UsageError(f"-n is {arguments.count}; it must be 0 (all) or more")
    if not all(name.strip() for name in arguments.names):
        raise empty_reference_error()
    base = choose_output_dir(arguments, context)
    every = list_all_launches(base)
    folders = [folder for folder in every if matches_any_name(folder.name, arguments.names)]
    found, unseen = _choose_launches(folders, arguments, context)
    if arguments.json:
        context.say_json(launches_to_json(found))
    elif not folders:
        named = f" named {' or '.join(arguments.names)}" if every else ""
        context.note(f"there are no launches{named} in {base}")
    else:
        show_page(
            render_launches_page(found, parse_sort_key(arguments.sort) if arguments.sort else None),
            context,
            paged=True,
        )
        context.note(f"in {base}")
        if unseen:
            context.note(f"{unseen} {'more' if arguments.sort else 'older'} not shown; -n 0 shows all")
    return 0


def matches_any_name(launch: str, names: Sequence[str]) -> bool:
    """Whether a launch's id begins with or matches one of these names; True if there are none.

    The name of a launch is the beginning of its id.
    """
    return not names or any(
        launch.startswith(name)
        or fnmatchcase(launch, name)
        or fnmatchcase(extract_name_from_launch_id(launch), name)
        for name in names
    )


def _choose_launches(
    folders: Sequence[Path], arguments: argparse.Namespace, context: Context
) -> tuple[list[LaunchLine], int]:
    """Return the launches to show, and how many are left out; unsorted, older ones are not read."""
    wanted, count = build_filter(arguments), arguments.count or len(folders)
    lines = (line for folder in folders if (line := build_launch_line(folder, wanted, context)) is not None)
    if arguments.sort:
        found = sort_launches(list(lines), parse_sort_key(arguments.sort))
        return found[:count], max(len(found) - count, 0)
    if wanted.takes_all_runs:
        read = [build_launch_line(folder, wanted, context) for folder in folders[:count]]
        return [line for line in read if line is not None], max(len(folders) - count, 0)
    found = list(islice(lines, count))
    return found, sum(1 for _ in lines)


def build_launch_line(folder: Path, wanted: Filter, context: Context) -> LaunchLine | None:
    """Return a launch's line if a run matches; warn if the launch cannot be read."""
    try:
        launch = load_launch_of_any_owner(folder)
        runs = build_launch_view(launch, context, ask=Ask.nothing, freshness=Freshness()).runs
    except HpckitError as error:
        context.note(f"warning: {error.message}")
        return None
    states = [view.state_by_record_alone for view in runs]
    pairs = zip(runs, states, strict=True)
    some = [one for one, state in pairs if wanted.matches_run(state, one.record.overrides)]
    if not some and not wanted.takes_all_runs:
        return None
    return LaunchLine(
        head=build_launch_head(launch),
        counts=count_runs_by_state(states),
        metrics=tuple(view.record.metrics for view in some),
    )
