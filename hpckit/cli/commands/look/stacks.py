"""`hpckit stacks`: what every rank of a running run is doing now; the run continues."""

from __future__ import annotations

import argparse

from hpckit.cli.options import add_common, add_reference, find_named
from hpckit.context import Context
from hpckit.errors import NotFoundError
from hpckit.model.counted import ranges
from hpckit.model.failure import StacksAnswer
from hpckit.model.plain import to_plain
from hpckit.model.run import RunRecord
from hpckit.record.lookup import Selection
from hpckit.record.process import this_host
from hpckit.report.stacks import stacks_object, stacks_text
from hpckit.runtime.mailbox import read_stacks
from hpckit.views.awaited_answer import await_answer, put_request, running_run

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
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print the stacks of the ranks; returns 0. Raises HpckitError."""
    selection = find_named(arguments, context)
    (record, answer), rank = _ask_stacks(selection, context), arguments.rank
    stacks = [stack for stack in answer.stacks if rank in {None, stack.rank}]
    if rank is not None and answer.round is not None and not stacks:
        known = ranges(stack.rank for stack in answer.stacks)
        raise NotFoundError(f"run {record.id} has no rank {rank} now; it has {known or 'none'}")
    if arguments.json:
        context.say_json(stacks_object(record.id, record.attempt, answer, stacks))
    else:
        context.say(stacks_text(record.id, record.attempt, answer, rank))
    return 0


def _ask_stacks(selection: Selection, context: Context) -> tuple[RunRecord, StacksAnswer]:
    """Return the selected run, which continues, and the stacks of all its ranks.

    Raises UsageError if it is not running, RunError if it ends meanwhile, or its
    supervisor does not answer.
    """
    launch = selection.launch
    record = running_run(selection, context, "asked for its stacks").record
    paths = launch.paths.run(record.index).attempt(record.attempt)
    asked = {"at": to_plain(context.now()), "host": this_host()}
    request = put_request(paths.stacks_requests, asked)
    return record, await_answer(lambda: read_stacks(paths, request), launch, record, context)
