"""Queries which nodes a cluster has, one by one, and which of them a reservation holds."""

from __future__ import annotations

from hpckit.model.cluster.site import ClusterNode
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import node_names
from hpckit.slurm.query import settings
from hpckit.slurm.site_parse import NODE_FORMAT, read_cluster_nodes

NODES = ("sinfo", "--all", "--Node", "--noheader", f"--format={NODE_FORMAT}")


def cluster_nodes(commands: SlurmCommands) -> tuple[ClusterNode, ...]:
    """Return all nodes with what they have and their states, in one query.

    Raises SchedulerAwayError or SchedulerRefusedError.
    """
    return read_cluster_nodes(commands.run(*NODES))


def reserved_nodes(commands: SlurmCommands, name: str) -> tuple[str, ...]:
    """Return the nodes of a reservation; raises as `cluster_nodes`."""
    return node_names(settings(commands, "reservation", name).get("Nodes", ""))
