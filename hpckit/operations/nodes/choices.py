"""Asks Slurm for its nodes, to tell which of those with incidents launches leave out now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.nodes.incident import NodeStanding
from hpckit.planning.nodes.standing import why_used
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import cluster_nodes

_PATIENCE = timedelta(seconds=10)


def ask_why_used(standings: Sequence[NodeStanding], context: Context) -> Mapping[str, str] | None:
    """Return why launches use nodes with incidents nevertheless; None if Slurm does not answer.

    It is asked only if there are nodes that might be left out.
    """
    if all(one.avoided_until is None for one in standings):
        return {}
    commands = SlurmCommands(bin_dir=None, environ=context.environ, timeout=_PATIENCE)
    try:
        return why_used(standings, cluster_nodes(commands))
    except SchedulerError:
        return None
