"""`hpckit stacks`: what every rank of a running run is doing now; the run continues."""

from __future__ import annotations

import argparse

from hpckit.cli.options import add_json, add_output_dir, add_reference, output_dir
from hpckit.context import Context
from hpckit.errors import NotFoundError
from hpckit.model.ranges import ranges
from hpckit.operations.running.ask_stacks import ask_stacks
from hpckit.record.lookup import find
from hpckit.report.stacks import stacks_object, stacks_text

EPILOG = """\
examples:
  hpckit stacks digits.3            all ranks; those at the same place stand together
  hpckit stacks digits.3 --rank 7   one rank, with all its threads

Signals, debuggers and logins are not needed: the run's own processes answer, and continue.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `stacks`."""
    add_reference(parser)
    parser.add_argument("--rank", metavar="N", type=int, help="this rank only, with all threads")
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print the stacks of the ranks; returns 0. Raises HpckitError."""
    selection = find(arguments.reference, output_dir(arguments, context), cwd=context.cwd)
    (record, answer), rank = ask_stacks(selection, context), arguments.rank
    stacks = [one for one in answer.stacks if rank in {None, one.rank}]
    if rank is not None and answer.round is not None and not stacks:
        known = ranges(one.rank for one in answer.stacks)
        raise NotFoundError(f"run {record.id} has no rank {rank} now; it has {known or 'none'}")
    if arguments.json:
        context.say_json(stacks_object(record.id, record.attempt, answer, stacks))
    else:
        context.say(stacks_text(record.id, record.attempt, answer, rank))
    return 0
