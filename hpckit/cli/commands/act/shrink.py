"""`hpckit shrink`: a running run continues with fewer replicas."""

from __future__ import annotations

import argparse

from hpckit.cli.options import add_common_options, add_launch_or_run_argument, resolve_reference_to_change
from hpckit.context import Context
from hpckit.model.counted import format_count
from hpckit.operations.next_step import launch_reference
from hpckit.operations.running.resize import shrink_run

EPILOG = """\
examples:
  hpckit shrink charlm.0 --replicas 1

The run saves at its next step boundary and continues on fewer nodes, with the same batches. Nodes
of a satellite job are free again; the others stand as spares, and `hpckit grow` takes them back.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `shrink`."""
    add_launch_or_run_argument(parser)
    parser.add_argument("--replicas", metavar="N", type=int, required=True, help="how many replicas to keep")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Have a run shrink; returns 0. Raises HpckitError."""
    selection = resolve_reference_to_change(arguments, context)
    record, answer = shrink_run(selection, arguments.replicas, context)
    if arguments.json:
        wanted = arguments.replicas
        context.say_json({"run": record.id, "replicas": answer.replicas, "wanted": wanted})
        return 0
    count = format_count(arguments.replicas, "replica")
    context.say(f"run {record.id} shrinks from {answer.replicas} to {count} at its next step boundary")
    context.say(f"  next    hpckit status {launch_reference(selection.launch, context)}")
    return 0
