"""`hpckit rerun`: one run again, in a launch of its own, as it was configured."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hpckit.cli.launch_output import print_scripts, say_checked, say_started
from hpckit.cli.options import add_json, add_output_dir, add_reference, output_dir
from hpckit.cli.terminal.waiting import Waiting, wait
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.record.lookup import Selection, find

if TYPE_CHECKING:
    from hpckit.operations.rerun import PreparedRerun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `rerun` understands."""
    add_reference(parser)
    parser.add_argument(
        "--exact",
        action="store_true",
        help="with the code and the Python it was frozen with, not today's",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the batch script, and leave nothing behind"
    )
    parser.add_argument(
        "--no-check", action="store_true", help="do not look beforehand whether it can run"
    )
    parser.add_argument(
        "--wait", action="store_true", help="wait for the end: exit code 1 unless it completed"
    )
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Launch a run again, and say what of code and environment is not what it was."""
    # Imported here: they import Hydra, which --help does without.
    from hpckit.operations import check, launch, rerun  # noqa: PLC0415

    selection = find(arguments.reference, output_dir(arguments, context), cwd=context.cwd)
    index = _index(selection)
    source = rerun.prepare_rerun(
        selection.launch, index, arguments.words, context, exact=arguments.exact
    )
    with source as found:
        _say_differences(found, context)
        more = {
            "rerun_of": selection.launch.runs[index].id,
            "exact": arguments.exact,
            "code": found.code,
            "differences": found.differences,
        }
        prepared = found.prepared
        if arguments.dry_run:
            print_scripts(prepared, context, as_json=arguments.json, more=more)
            return 0
        if not arguments.no_check:
            checked = check.check_launch(prepared, context)
            if not say_checked(checked, context):
                return 2
        started = launch.start(prepared, context)
    say_started(started, context, as_json=arguments.json, more=more)
    return wait(started.launch, context, Waiting(quiet=arguments.json)) if arguments.wait else 0


def _index(selection: Selection) -> int:
    launch = selection.launch
    if selection.index is not None:
        return selection.index
    if len(launch.runs) > 1:
        raise UsageError(
            f"{launch.id} has {len(launch.runs)} runs; rerun starts a single one again",
            hint=f"name it, such as {launch.runs[0].id}; `hpckit results {launch.id}` lists them",
        )
    return 0


def _say_differences(found: PreparedRerun, context: Context) -> None:
    """Say where the code is from and what of the environment is not what it was."""
    context.note(f"code: {found.code}")
    for line in found.differences or ():
        context.note(f"environment: {line}")
    if not found.differences:
        known = found.differences is not None
        context.note(
            f"environment: {'nothing differs' if known else 'could not compare the environments'}"
        )
