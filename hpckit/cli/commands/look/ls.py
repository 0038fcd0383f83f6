"""`hpckit ls`: lists launches, newest first, from the record alone.

Never asks the scheduler, however many launches there are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from hpckit.cli.gc_pause import gc_paused
from hpckit.cli.options import add_common, add_filters, add_sort, filter_of, output_dir
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import HpckitError, UsageError
from hpckit.model.ids import name_of
from hpckit.record.launches import load_evidence
from hpckit.record.lookup import empty_reference, list_all
from hpckit.report.machine import launches_document
from hpckit.report.rows import count_states
from hpckit.report.selection import Filter, LaunchLine, sort_key, sort_launches
from hpckit.report.text import launches_page
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import Ask, launch_head, launch_view

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
    add_filters(parser)
    add_sort(parser, "Columns: created, name, runs, a state (how many), a metric (its best run)")
    add_common(parser)


@gc_paused()
def run(arguments: argparse.Namespace, context: Context) -> int:
    """List launches; always returns 0, also if there are none."""
    if arguments.count < 0:
        raise UsageError(f"-n is {arguments.count}; it has to be 0 (all) or more")
    if not all(name.strip() for name in arguments.names):
        raise empty_reference()
    base = output_dir(arguments, context)
    every = list_all(base)
    folders = [folder for folder in every if _is_named(folder.name, arguments.names)]
    found, unseen = _chosen(folders, arguments, context)
    if arguments.json:
        context.say_json(launches_document(found))
    elif not folders:
        named = f" named {' or '.join(arguments.names)}" if every else ""
        context.note(f"there are no launches{named} in {base}")
    else:
        show_page(
            launches_page(found, sort_key(arguments.sort) if arguments.sort else None),
            context,
            paged=True,
        )
        context.note(f"in {base}")
        if unseen:
            context.note(
                f"{unseen} {'more' if arguments.sort else 'older'} not shown; -n 0 shows all"
            )
    return 0


def _is_named(launch: str, names: Sequence[str]) -> bool:
    """Whether a launch's id begins with or matches one of these names; True if there are none.

    The name of a launch is the beginning of its id.
    """
    return not names or any(
        launch.startswith(name) or fnmatchcase(launch, name) or fnmatchcase(name_of(launch), name)
        for name in names
    )


def _chosen(
    folders: Sequence[Path], arguments: argparse.Namespace, context: Context
) -> tuple[list[LaunchLine], int]:
    """Return the launches to show, and how many are left out; unsorted, older ones are not read."""
    wanted, count = filter_of(arguments), arguments.count or len(folders)
    lines = (line for folder in folders if (line := _line(folder, wanted, context)) is not None)
    if arguments.sort:
        found = sort_launches(list(lines), sort_key(arguments.sort))
        return found[:count], max(len(found) - count, 0)
    if wanted.all:
        read = [_line(folder, wanted, context) for folder in folders[:count]]
        return [line for line in read if line is not None], max(len(folders) - count, 0)
    found = list(islice(lines, count))
    return found, sum(1 for _ in lines)


def _line(folder: Path, wanted: Filter, context: Context) -> LaunchLine | None:
    """Return a launch's line if a run matches; warn if the launch cannot be read."""
    try:
        launch = load_evidence(folder)
        runs = launch_view(launch, context, ask=Ask.nothing, freshness=Freshness()).runs
    except HpckitError as error:
        context.note(f"warning: {error.message}")
        return None
    states = [view.recorded_state for view in runs]
    pairs = zip(runs, states, strict=True)
    some = [one for one, state in pairs if wanted.takes(state, one.record.overrides)]
    if not some and not wanted.all:
        return None
    return LaunchLine(
        head=launch_head(launch),
        counts=count_states(states),
        metrics=tuple(view.record.metrics for view in some),
    )
