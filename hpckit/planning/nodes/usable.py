"""Which nodes a job could really get: up, in its partitions, with its features and hardware. Pure.

A node that is left out must leave enough others: Slurm lets a job wait without end that asks for
more nodes than there are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpckit.model.cluster.site import ClusterNode
from hpckit.model.plan import ResourceSpec
from hpckit.planning.checks.node_shape import fits_node

_CONSTRAINT = ("constraint", "C")
_PARTITION = ("partition", "p")
_CHOOSING = frozenset(
    {
        *("nodelist", "w", "exclude", "x", "nodefile", "F", "reservation", "contiguous"),
        *("prefer", "cluster-constraint", "batch", "clusters", "M"),
    }
)
"""Options of sbatch by which a user chooses nodes, apart from our own fields."""
_KEPT_FREE = frozenset({"reserved", "maint"})
"""How nodes of a reservation are shown; for its own jobs they are usable."""
_SYNTAX = frozenset("[]()*@,!")
"""Marks of constraints that concern several nodes at once, or that Slurm may come to know."""


def additional(asked: ResourceSpec, *names: str) -> str | None:
    """Return the value of an option among the user's own, by any of its names; None if not set."""
    for key, value in asked.additional_parameters:
        if key.replace("_", "-") in names and value not in (None, False):
            return "" if value is True else str(value)
    return None


def chooses_nodes(asked: ResourceSpec) -> bool:
    """Whether a job names its nodes, or those that it does not want, or a reservation of nodes.

    `resources.exclude` alone does not count: other nodes may be added to it.
    """
    return bool(asked.nodelist or asked.reservation) or additional(asked, *_CHOOSING) is not None


def partitions_of(asked: ResourceSpec) -> tuple[str, ...]:
    """Return the partitions that a job names; none for the default one."""
    named = asked.partition or additional(asked, *_PARTITION) or ""
    return tuple(name for name in named.split(",") if name)


def usable_nodes(
    nodes: Sequence[ClusterNode],
    asked: ResourceSpec,
    *,
    partitions: Sequence[str],
    reserved: Collection[str] | None = None,
) -> frozenset[str] | None:
    """Return the names of the nodes that a job could get; None if its constraint is not understood.

    Parameters: no `partitions` are the default one. `reserved` are the nodes of its reservation.
    """
    constraint = asked.constraint or additional(asked, *_CONSTRAINT) or ""
    if not _SYNTAX.isdisjoint(constraint) or {"&", "|"} <= {*constraint}:
        return None
    return frozenset(
        node.name
        for node in nodes
        if (node.has.partition in partitions if partitions else node.default)
        and (reserved is None or node.name in reserved)
        and (node.has.usable or (reserved is not None and node.has.state in _KEPT_FREE))
        and _meets(constraint, node.features)
        and fits_node(asked, node.has)
    )


def _meets(constraint: str, features: Collection[str]) -> bool:
    if "|" in constraint:
        return any(word.strip() in features for word in constraint.split("|"))
    return all(word.strip() in features for word in constraint.split("&") if word.strip())
