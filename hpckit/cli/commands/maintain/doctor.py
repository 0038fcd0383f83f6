"""`hpckit doctor`: finds submissions of unknown outcome and settles them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from hpckit.cli.options import add_json, add_output_dir, output_dir
from hpckit.context import Context
from hpckit.operations.unconfirmed_jobs import SettledAs, UnconfirmedJob, find_unconfirmed, settle
from hpckit.record.launches import Launch, load_launch
from hpckit.record.lookup import find, list_launches

EPILOG = """\
examples:
  hpckit doctor   what broken submissions left behind
  hpckit doctor --adopt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    parser.add_argument(
        "reference", nargs="?", metavar="LAUNCH", help="one launch (default: all there are)"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--adopt", action="store_true", help="make what Slurm has part of its run")
    action.add_argument("--cancel", action="store_true", help="cancel what Slurm has")
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show unconfirmed jobs and, if asked to, settle them; returns 0 if Slurm answered."""
    settled = [
        (found, _settled(found, arguments, context))
        for found in find_unconfirmed(_launches(arguments, context), context)
    ]
    if arguments.json:
        context.say_json({"unconfirmed": [_document(*each) for each in settled]})
    elif not settled:
        context.say("every submission is accounted for")
    else:
        _say(settled, context)
    return 0


def _settled(found: UnconfirmedJob, arguments: argparse.Namespace, context: Context) -> SettledAs:
    if not (arguments.adopt or arguments.cancel):
        return SettledAs.untouched
    return settle(found, context, adopt=arguments.adopt)


def _launches(arguments: argparse.Namespace, context: Context) -> Iterator[Launch]:
    folder = output_dir(arguments, context)
    if arguments.reference is None:
        yield from map(load_launch, list_launches(folder))
    else:
        yield find(arguments.reference, folder, cwd=context.cwd).launch


def _document(found: UnconfirmedJob, outcome: SettledAs) -> dict[str, object]:
    return {
        "launch": found.launch.id,
        "dir": str(found.launch.folder),
        "job_index": found.job.index,
        "job_name": found.job.name,
        "jobs": found.jobs,
        "outcome": outcome,
    }


def _say(settled: Sequence[tuple[UnconfirmedJob, SettledAs]], context: Context) -> None:
    for found, outcome in settled:
        known = f"Slurm has it as {', '.join(found.jobs)}" if found.jobs else "Slurm has none"
        context.say(f"{found.launch.id}: job {found.job.name}: {known}; {outcome}")
    if any(outcome is SettledAs.untouched for _, outcome in settled):
        context.say(
            "`hpckit doctor --adopt` keeps these jobs, `hpckit doctor --cancel` cancels them"
        )
