"""`hpckit shrink`: a running run continues with fewer replicas."""

from __future__ import annotations

import argparse

from hpckit.cli.options import add_common, add_reference, find_named
from hpckit.context import Context
from hpckit.model.counted import counted
from hpckit.operations.next_step import reference
from hpckit.operations.running.resize import shrink_run

EPILOG = """\
examples:
  hpckit shrink charlm.0 --replicas 1

The run saves at its next step boundary and continues on fewer nodes, with the same batches. Nodes
of a satellite job are free again; the others stand as spares, and `hpckit grow` takes them back.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `shrink`."""
    add_reference(parser)
    parser.add_argument(
        "--replicas", metavar="N", type=int, required=True, help="how many replicas to keep"
    )
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Have a run shrink; returns 0. Raises HpckitError."""
    selection = find_named(arguments, context)
    record, answer = shrink_run(selection, arguments.replicas, context)
    if arguments.json:
        wanted = arguments.replicas
        context.say_json({"run": record.id, "replicas": answer.replicas, "wanted": wanted})
        return 0
    count = counted(arguments.replicas, "replica")
    context.say(
        f"run {record.id} shrinks from {answer.replicas} to {count} at its next step boundary"
    )
    context.say(f"  next    hpckit status {reference(selection.launch, context)}")
    return 0
