"""The order of nodes in which neighbours of the layout are neighbours in the network. Pure.

Slurm tells each node where it is in `SLURM_TOPOLOGY_ADDR`: the names of its switches, or of its
block, from the top, and its own. https://slurm.schedmd.com/topology.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_LONGEST = 1000


def switches_above(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the switches above the node of an agent, the uppermost first; empty if unknown.

    Example: `SLURM_TOPOLOGY_ADDR=root.leaf2.n7` is `("root", "leaf2")`.
    """
    address = environ.get("SLURM_TOPOLOGY_ADDR", "")
    pattern = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    if len(address) > _LONGEST:
        return ()
    # A node's own name may have dots in it; the pattern says how many parts are switches.
    depth = pattern.count(".") if pattern else address.count(".")
    return tuple(address.split(".", depth)[:depth])


def network_order(
    nodes: Sequence[str],
    switches: Mapping[str, tuple[str, ...]],
    *,
    replica_nodes: int = 1,
    domain_nodes: int = 1,
) -> tuple[str, ...]:
    """Return the nodes by their switches; those of one switch keep their order.

    Nodes of one switch stand together. If replicas have several nodes, whole replicas within one
    lowest switch or block come first, then whole NVLink domains (`domain_nodes`), and what is left
    over of the switches last. The order stays as it is if the switches of any node are unknown.
    """
    if not all(switches.get(node) for node in nodes):
        return tuple(nodes)
    left = sorted(nodes, key=lambda node: switches[node])
    order: list[str] = []
    for size in (replica_nodes, domain_nodes):
        if size > 1:
            whole, left = _whole_groups(left, switches, size)
            order += whole
    return (*order, *left)


def _whole_groups(
    nodes: Sequence[str], switches: Mapping[str, tuple[str, ...]], size: int
) -> tuple[list[str], list[str]]:
    """Return the nodes in groups of `size` within one lowest switch, and those left over."""
    below: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        below.setdefault(switches[node], []).append(node)
    whole, left = [], []
    for group in below.values():
        count = len(group) // size * size
        whole += group[:count]
        left += group[count:]
    return whole, left
