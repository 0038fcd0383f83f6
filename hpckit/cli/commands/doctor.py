"""`hpckit doctor`: finds submissions of unknown outcome, and settles them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from hpckit.cli.options import add_json, add_output_dir, output_dir
from hpckit.context import Context
from hpckit.operations.orphan_jobs import OrphanJob, SettledAs, find_orphans, settle
from hpckit.record.launches import Launch, load_launch
from hpckit.record.lookup import find, list_launches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `doctor` understands."""
    parser.add_argument(
        "reference", nargs="?", metavar="LAUNCH", help="one launch (default: all there are)"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--adopt", action="store_true", help="make what Slurm has part of its run")
    action.add_argument("--cancel", action="store_true", help="cancel what Slurm has")
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show orphans and, where asked to, settle them; always 0 where Slurm answered."""
    settled = [
        (orphan, _settled(orphan, arguments, context))
        for orphan in find_orphans(_launches(arguments, context), context)
    ]
    if arguments.json:
        context.say_json({"orphans": [_document(*each) for each in settled]})
    elif not settled:
        context.say("every submission is accounted for")
    else:
        _say(settled, context)
    return 0


def _settled(orphan: OrphanJob, arguments: argparse.Namespace, context: Context) -> SettledAs:
    if not (arguments.adopt or arguments.cancel):
        return SettledAs.untouched
    return settle(orphan, context, adopt=arguments.adopt)


def _launches(arguments: argparse.Namespace, context: Context) -> Iterator[Launch]:
    folder = output_dir(arguments, context)
    if arguments.reference is None:
        yield from map(load_launch, list_launches(folder))
    else:
        yield find(arguments.reference, folder, cwd=context.cwd).launch


def _document(orphan: OrphanJob, outcome: SettledAs) -> dict[str, object]:
    return {
        "launch": orphan.launch.id,
        "dir": str(orphan.launch.folder),
        "job_index": orphan.job.index,
        "job_name": orphan.job.name,
        "jobs": orphan.jobs,
        "outcome": outcome,
    }


def _say(settled: Sequence[tuple[OrphanJob, SettledAs]], context: Context) -> None:
    for orphan, outcome in settled:
        known = f"Slurm has it as {', '.join(orphan.jobs)}" if orphan.jobs else "Slurm has none"
        context.say(f"{orphan.launch.id}: job {orphan.job.name}: {known}; {outcome}")
    if any(outcome is SettledAs.untouched for _, outcome in settled):
        context.say(
            "`hpckit doctor --adopt` keeps these jobs, `hpckit doctor --cancel` cancels them"
        )
