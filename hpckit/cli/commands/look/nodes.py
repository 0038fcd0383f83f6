"""`hpckit nodes`: what happened on which node, over all launches, and which are avoided."""

from __future__ import annotations

import argparse
from datetime import timedelta

from hpckit.cli.options import add_common, add_flag, output_dir
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import NotFoundError, UsageError
from hpckit.operations.nodes.avoid import ask_why_used
from hpckit.planning.nodes.standing import KEPT, node_standings
from hpckit.record.nodes.history import forget_node, history_problem, read_incidents, remove_older
from hpckit.report.environment.nodes import node_page, nodes_document, nodes_page

EPILOG = """\
examples:
  hpckit nodes                 nodes on which something happened in the last 30 days
  hpckit nodes gpu017          all that happened there
  hpckit nodes gpu017 --forget   it has been repaired: launches use it again
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nodes`."""
    parser.add_argument("node", nargs="?", metavar="NODE", help="one node (default: all)")
    add_flag(parser, "--forget", "what happened there until now counts no more")
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print the history, or forget that of a node; returns 0. Raises HpckitError."""
    folder, now = output_dir(arguments, context), context.now()
    problem = history_problem(folder)
    if problem is not None:
        context.note(f"warning: {problem}")
    every = standings = node_standings(read_incidents(folder), now)
    if arguments.node is not None:
        standings = tuple(standing for standing in standings if standing.node == arguments.node)
        if not standings:
            raise NotFoundError(f"nothing has happened on {arguments.node} in the last 30 days")
    if arguments.forget:
        if arguments.node is None:
            raise UsageError("--forget needs a node", hint="hpckit nodes NODE --forget")
        _forget(arguments.node, arguments, context)
    elif arguments.json:
        context.say_json(nodes_document(standings, ask_why_used(every, context)))
    elif arguments.node is not None:
        show_page(node_page(standings[0], ask_why_used(every, context), now), context)
    else:
        show_page(nodes_page(standings, ask_why_used(every, context), now), context)
    return 0


def _forget(node: str, arguments: argparse.Namespace, context: Context) -> None:
    folder, now = output_dir(arguments, context), context.now()
    try:
        forget_node(folder, node, now)
        remove_older(folder, now - KEPT - timedelta(days=1))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from error
    if arguments.json:
        context.say_json({"forgotten": node})
    else:
        context.say(f"launches use {node} again")
