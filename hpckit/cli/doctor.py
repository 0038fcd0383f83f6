"""`hpckit doctor`: finds submissions of which nobody knows the outcome, and settles them.

Responsible for orphans: an intent was recorded, and neither acceptance nor refusal (a crash, a
lost connection, an sbatch that did not answer). It must not touch launches that are in order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpckit.cli.context import Context, add_json, add_output_dir, output_dir
from hpckit.cli.views import unconfirmed
from hpckit.model.events import CancelRequested, SubmitRefused, Submitted
from hpckit.model.plan import JobSpec
from hpckit.record.launch_events import record_event
from hpckit.record.launches import Launch, load_launch
from hpckit.record.lookup import find, list_launches
from hpckit.slurm.cancel import cancel
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import find_by_name


class Outcome(StrEnum):
    """What was done about an orphan. `closed`: Slurm has no such job, and the record says so."""

    untouched = "untouched"
    adopted = "adopted"
    cancelled = "cancelled"
    closed = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A job of unknown fate: `jobs` are the main ids Slurm knows under its name, oldest first."""

    launch: Launch
    job: JobSpec
    jobs: tuple[str, ...]


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
        (orphan, _settle(orphan, arguments, context)) for orphan in _orphans(arguments, context)
    ]
    if arguments.json:
        context.say_json({"orphans": [_document(*each) for each in settled]})
    elif not settled:
        context.say("every submission is accounted for")
    else:
        _say(settled, context)
    return 0


def _orphans(arguments: argparse.Namespace, context: Context) -> Iterator[Orphan]:
    for launch in _launches(arguments, context):
        for job in unconfirmed(launch):
            jobs = find_by_name(job.name, _commands(launch, context))
            yield Orphan(launch=launch, job=job, jobs=jobs)


def _launches(arguments: argparse.Namespace, context: Context) -> Iterator[Launch]:
    folder = output_dir(arguments, context)
    if arguments.reference is None:
        yield from map(load_launch, list_launches(folder))
    else:
        yield find(arguments.reference, folder, cwd=context.cwd).launch


def _commands(launch: Launch, context: Context) -> SlurmCommands:
    return SlurmCommands(bin_dir=launch.cluster.bin_dir, environ=context.environ)


def _settle(orphan: Orphan, arguments: argparse.Namespace, context: Context) -> Outcome:
    if not (arguments.adopt or arguments.cancel):
        return Outcome.untouched
    paths = orphan.launch.paths
    if not orphan.jobs:
        message = f"Slurm has no job named {orphan.job.name}"
        refused = SubmitRefused(at=context.now(), job_index=orphan.job.index, message=message)
        record_event(paths, refused)
        return Outcome.closed
    if arguments.cancel:
        runs = orphan.job.runs
        record_event(paths, CancelRequested(at=context.now(), runs=runs))
        cancel(orphan.jobs, _commands(orphan.launch, context))
    adopted = Submitted(
        at=context.now(), job_index=orphan.job.index, job=orphan.jobs[-1], adopted=True
    )
    record_event(paths, adopted)
    return Outcome.cancelled if arguments.cancel else Outcome.adopted


def _document(orphan: Orphan, outcome: Outcome) -> dict[str, object]:
    return {
        "launch": orphan.launch.id,
        "dir": str(orphan.launch.folder),
        "job_index": orphan.job.index,
        "job_name": orphan.job.name,
        "jobs": orphan.jobs,
        "outcome": outcome,
    }


def _say(settled: Sequence[tuple[Orphan, Outcome]], context: Context) -> None:
    for orphan, outcome in settled:
        known = f"Slurm has it as {', '.join(orphan.jobs)}" if orphan.jobs else "Slurm has none"
        context.say(f"{orphan.launch.id}: job {orphan.job.name}: {known}; {outcome}")
    if any(outcome is Outcome.untouched for _, outcome in settled):
        context.say("`hpckit doctor --adopt` goes on with them, `hpckit doctor --cancel` ends them")
