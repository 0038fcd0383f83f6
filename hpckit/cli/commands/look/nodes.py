"""`hpckit nodes`: what happened on which node, over all launches, and which are avoided."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from hpckit.cli.options import add_common_options, add_flag, choose_output_dir
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import NotFoundError, UsageError
from hpckit.model.counted import format_count
from hpckit.model.nodes import NodeIncident, NodeStanding
from hpckit.model.plain import to_plain
from hpckit.operations.avoid_nodes import explain_why_bad_nodes_are_used
from hpckit.patterns import lazy_pattern
from hpckit.planning.nodes import KEPT, rate_nodes_by_incidents
from hpckit.record.node_history import (
    explain_unused_node_history,
    forget_node_incidents,
    read_node_incidents,
    remove_old_history_files,
)
from hpckit.report.text import Page, TextTable

EPILOG = """\
examples:
  hpckit nodes                 nodes on which something happened in the last 30 days
  hpckit nodes gpu017          all that happened there
  hpckit nodes gpu017 --forget   it has been repaired: launches use it again
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nodes`."""
    parser.add_argument("node", nargs="?", metavar="NODE", help="one node (default: all)")
    add_flag(parser, "--forget", "ignore what happened there until now")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print the history, or forget that of a node; returns 0. Raises HpckitError."""
    folder, now = choose_output_dir(arguments, context), context.now()
    problem = explain_unused_node_history(folder)
    if problem is not None:
        context.note(f"warning: {problem}")
    every = standings = rate_nodes_by_incidents(read_node_incidents(folder), now)
    if arguments.node is not None:
        standings = tuple(standing for standing in standings if standing.node == arguments.node)
        if not standings:
            raise NotFoundError(f"nothing has happened on {arguments.node} in the last 30 days")
    if arguments.forget:
        if arguments.node is None:
            raise UsageError("--forget needs a node", hint="hpckit nodes NODE --forget")
        _forget_node_history(arguments.node, arguments, context)
    elif arguments.json:
        context.say_json(nodes_to_json(standings, explain_why_bad_nodes_are_used(every, context)))
    elif arguments.node is not None:
        show_page(
            build_node_history_page(standings[0], explain_why_bad_nodes_are_used(every, context), now),
            context,
        )
    else:
        show_page(build_nodes_page(standings, explain_why_bad_nodes_are_used(every, context), now), context)
    return 0


def _forget_node_history(node: str, arguments: argparse.Namespace, context: Context) -> None:
    folder, now = choose_output_dir(arguments, context), context.now()
    try:
        forget_node_incidents(folder, node, now)
        remove_old_history_files(folder, now - KEPT - timedelta(days=1))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from error
    if arguments.json:
        context.say_json({"forgotten": node})
    else:
        context.say(f"launches use {node} again")


_FORM = "%m-%d %H:%M"
_NUMBER = lazy_pattern(r"\d+")
_UNTOLD = (
    "{} may be left out: at most a tenth of a partition's nodes, or one of four to nine (Slurm did "
    "not say which nodes it has)"
)

Used = Mapping[str, str] | None
"""What planning.nodes says; None without an answer of Slurm."""


def build_nodes_page(standings: Sequence[NodeStanding], used: Used, now: datetime) -> Page:
    """Return a line for each node with incidents, the worst first; times in the zone of `now`.

    `used` says why launches use nodes nevertheless; None if Slurm did not answer.
    """
    if not standings:
        return ["nothing has happened on any node in the last 30 days"]
    rows = tuple(
        (
            standing.node,
            _describe_if_launches_use_node(standing, used, now),
            ", ".join(
                f"{count} {kind}" for kind, count in Counter(i.kind for i in standing.incidents).items()
            ),
            standing.incidents[-1].at.astimezone(now.tzinfo).strftime(_FORM),
            " ".join(standing.incidents[-1].message.split()),
        )
        for standing in standings
    )
    bad = [standing for standing in standings if standing.avoided_until is not None]
    out = f"{sum(not (used or {}).get(standing.node) for standing in bad)} left out of new launches"
    known = out if used is not None or not bad else _UNTOLD.format(len(bad))
    return [
        TextTable(header=("NODE", "LAUNCHES", "INCIDENTS", "LATEST", "WHAT"), rows=rows, flexible=("WHAT",)),
        f"{format_count(len(standings), 'node')} with incidents in 30 days, {known}",
    ]


def build_node_history_page(standing: NodeStanding, used: Used, now: datetime) -> Page:
    """Return the incidents of one node, the latest last; those of one loop are one line."""
    rows = tuple(
        (
            alike[-1].at.astimezone(now.tzinfo).strftime(_FORM),
            str(len(alike)) if len(alike) > 1 else "",
            alike[-1].kind.value,
            alike[-1].run,
            " ".join(alike[-1].message.split()),
        )
        for alike in _group_alike_incidents(standing.incidents)
    )
    header = ("LATEST", "TIMES", "WHAT", "RUN", "MESSAGE")
    return [
        TextTable(header=header, rows=rows, flexible=("MESSAGE",)),
        f"{standing.node}: launches {_describe_if_launches_use_node(standing, used, now)}",
    ]


def _group_alike_incidents(incidents: Sequence[NodeIncident]) -> list[list[NodeIncident]]:
    """Return the incidents in groups of what happened alike to one run, by their latest."""
    groups: dict[tuple[str, str, str], list[NodeIncident]] = {}
    for incident in incidents:
        groups.setdefault((incident.kind, incident.run, _NUMBER.sub("#", incident.message)), []).append(
            incident
        )
    return sorted(groups.values(), key=lambda alike: alike[-1].at)


def _describe_if_launches_use_node(standing: NodeStanding, used: Used, now: datetime) -> str:
    until = standing.avoided_until
    if until is None:
        return "use it"
    if why := (used or {}).get(standing.node):
        return f"use it: {why}"
    may = "" if used is not None else "may "
    return f"{may}leave it out until {until.astimezone(now.tzinfo):{_FORM}}"


def nodes_to_json(standings: Sequence[NodeStanding], used: Used) -> dict[str, object]:
    """Return the object of `nodes --json`."""
    found = []
    for standing in standings:
        avoided, why = standing.avoided_until is not None, (used or {}).get(standing.node)
        left_out = None if used is None and avoided else avoided and not why
        found.append({**to_plain(standing), "left_out": left_out, "why_used": why or None})
    return {"nodes": found}
