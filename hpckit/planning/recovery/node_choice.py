"""Chooses the nodes of a round, and their order. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from hpckit.model.launch import Recovery
from hpckit.planning.recovery.ledger import Ledger
from hpckit.values import dataclass


def filter_out_nodes(standing: Sequence[str], left_out: Collection[str]) -> list[str]:
    """Return the available nodes that are not left out, in their order."""
    return [node for node in standing if node not in left_out]


def choose_nodes_in_whole_replicas(
    members: Sequence[str],
    good: Sequence[str],
    wanted: int,
    unwelcome: Collection[str] = (),
    *,
    replica_nodes: int = 1,
) -> tuple[str, ...]:
    """Return up to `wanted` good nodes in whole replicas of `replica_nodes` nodes each.

    A replica that lost no node keeps its nodes and their order. A spare takes the place of a lost node. If
    there are too few, or fewer are wanted, the replica that lost most nodes is dropped, the last of several,
    and its other nodes are spares. `unwelcome` nodes are taken only if there are too few others.
    """
    starts = range(0, len(members), replica_nodes)
    blocks = [tuple(members[at : at + replica_nodes]) for at in starts]
    gaps = {
        node: sum(member not in good or member in unwelcome for member in block)
        for block in blocks
        for node in block
    }
    place = {node: at for at, node in enumerate(members)}
    best = sorted(
        good, key=lambda one: (one in unwelcome, one not in gaps, gaps.get(one, 0), place.get(one, 0))
    )
    replicas = min(wanted, len(good)) // replica_nodes
    taken = best[: replicas * replica_nodes]
    # The replicas to keep, in their order: those that miss the fewest nodes.
    missing = [sum(node not in taken for node in block) for block in blocks]
    kept = sorted(sorted(range(len(blocks)), key=missing.__getitem__)[:replicas])
    places = [node for at in kept for node in blocks[at]]
    spares = iter(filter_out_nodes(taken, frozenset(places)))
    filled = [node if node in taken else next(spares) for node in places]
    return (*filled, *spares)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSizes:
    """How many nodes a round may have.

    `wanted` and `fewest` are for whole replicas of `replica_nodes` nodes each. `fallback` has the
    numbers of nodes for another layout, the best first.

    Example: with `wanted` 4, `fewest` 2, `replica_nodes` 4 and `fallback` (3, 2) it has 4, 3 or 2.
    """

    wanted: int = 1
    fewest: int = 1
    replica_nodes: int = 1
    fallback: tuple[int, ...] = ()

    def has_layout_for(self, nodes: int) -> bool:
        """Return whether this many nodes have a layout."""
        return nodes > 0 and (nodes % self.replica_nodes == 0 or nodes in self.fallback)

    def count_nodes_to_use(self, nodes: int) -> int:
        """Return how many of these nodes a round takes; 0 if they are too few for any layout.

        Whole replicas of the run's own layout come first.
        """
        whole = min(self.wanted, nodes) // self.replica_nodes * self.replica_nodes
        if whole and whole >= self.fewest:
            return whole
        return next((count for count in self.fallback if count <= nodes), whole)

    def choose_nodes(
        self, members: Sequence[str], good: Sequence[str], unwelcome: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Return which of the good nodes the next round takes, as `placed` says."""
        count = self.count_nodes_to_use(len(good))
        block = self.replica_nodes if count % self.replica_nodes == 0 else 1
        return choose_nodes_in_whole_replicas(members, good, count, unwelcome, replica_nodes=block)


def choose_first_round_nodes(
    standing: Sequence[str],
    past: Ledger,
    policy: Recovery,
    sizes: RoundSizes,
    unhealthy: Collection[str] = (),
    at: datetime | None = None,
) -> tuple[str, ...]:
    """Return the nodes of an attempt's first round, which begins at this time.

    Nodes that are not excluded come first, and `unhealthy` ones last.
    """
    bad = past.list_nodes_failing_too_often(policy, at)
    good = sorted(standing, key=lambda node: (node in unhealthy, node in bad))
    return tuple(good[: sizes.count_nodes_to_use(len(standing))])


_LONGEST = 1000


def list_switches_above_node(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the switches above the node of an agent, the uppermost first; empty if unknown.

    Slurm tells each node where it is in `SLURM_TOPOLOGY_ADDR`: the names of its switches, or of its
    block, from the top, and its own. https://slurm.schedmd.com/topology.html

    Example: `SLURM_TOPOLOGY_ADDR=root.leaf2.n7` is `("root", "leaf2")`.
    """
    address = environ.get("SLURM_TOPOLOGY_ADDR", "")
    pattern = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    if len(address) > _LONGEST:
        return ()
    # A node's own name may have dots in it; the pattern says how many parts are switches.
    depth = pattern.count(".") if pattern else address.count(".")
    return tuple(address.split(".", depth)[:depth])


def sort_nodes_by_switches(
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
            whole, left = _group_nodes_by_switch(left, switches, size)
            order += whole
    return (*order, *left)


def _group_nodes_by_switch(
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
