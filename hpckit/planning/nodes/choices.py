"""Which of the nodes with incidents launches leave out now, and why they use the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpckit.model.cluster.site import ClusterNode
from hpckit.model.nodes.incident import NodeStanding
from hpckit.planning.nodes.standing import most_left_out, nodes_to_avoid


def why_used(standings: Sequence[NodeStanding], nodes: Sequence[ClusterNode]) -> Mapping[str, str]:
    """Return why launches use nodes that they would leave out; of those left out an empty text.

    Parameter `nodes` are those of the cluster. A node is left out if a launch of one node leaves it
    out in any partition that has it.
    """
    bad = [one for one in standings if one.avoided_until is not None]
    usable: dict[str, set[str]] = {}
    for one in nodes:
        usable.setdefault(one.has.partition, set()).update([one.name] if one.has.usable else [])
    chosen = {
        name: {one.node for one in nodes_to_avoid(bad, there, ())} for name, there in usable.items()
    }
    return {one.node: _why(one.node, usable, chosen, nodes) for one in bad}


def _why(
    node: str,
    usable: Mapping[str, set[str]],
    chosen: Mapping[str, set[str]],
    nodes: Sequence[ClusterNode],
) -> str:
    if all(one.name != node for one in nodes):
        return "Slurm knows no such node"
    partitions = sorted(name for name, there in usable.items() if node in there)
    if not partitions:
        return "it is down, drained or reserved"
    if any(node in chosen[name] for name in partitions):
        return ""
    bounds = (f"{most_left_out(len(usable[name]))} of {len(usable[name])}" for name in partitions)
    limits = (f"{bound} in {name}" for bound, name in zip(bounds, partitions, strict=True))
    return f"launches leave out {', '.join(limits)} at most"
