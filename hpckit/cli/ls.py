"""`hpckit ls`: the launches there are, newest first, by our own record alone.

Responsible for the list; it must not ask the scheduler, however many launches there are.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from hpckit.cli.context import Context, add_json, add_output_dir, output_dir
from hpckit.cli.show import launch_head, show_page
from hpckit.cli.views import Ask, launch_view
from hpckit.errors import HpckitError, UsageError
from hpckit.model.states import RunState
from hpckit.record.find import list_launches
from hpckit.record.launches import load_launch
from hpckit.report.machine import launches_document
from hpckit.report.rows import LaunchHead, count_states
from hpckit.report.text import launches_page

SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `ls` understands."""
    parser.add_argument(
        "-n",
        dest="count",
        metavar="N",
        type=int,
        default=SHOWN,
        help="how many launches to show, newest first; 0 for all (default: %(default)s)",
    )
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """List launches; always 0, also where there are none."""
    if arguments.count < 0:
        raise UsageError(f"-n is {arguments.count}; it has to be 0 (all) or more")
    base = output_dir(arguments, context)
    folders = list_launches(base)
    shown = folders[: arguments.count or None]
    found = [line for folder in shown if (line := _line(folder, context)) is not None]
    if arguments.json:
        context.say_json(launches_document(found))
    elif not folders:
        context.note(f"there are no launches in {base}")
    else:
        show_page(launches_page(found), context)
        if len(folders) > len(shown):
            context.note(f"{len(folders) - len(shown)} older not shown; -n 0 shows all")
    return 0


def _line(folder: Path, context: Context) -> tuple[LaunchHead, Mapping[RunState, int]] | None:
    """Return a launch's line; one that cannot be read is noted and left out."""
    try:
        launch = load_launch(folder)
    except HpckitError as error:
        context.note(f"warning: {error.message}")
        return None
    runs = launch_view(launch, context, ask=Ask.nothing).runs
    return launch_head(launch), count_states(view.state for view in runs)
