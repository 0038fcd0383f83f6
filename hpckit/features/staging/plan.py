"""From whom each node gets data: the file system, or a tree over the job's own agents. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.values import dataclass

_CHILDREN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What is assumed of a site, in bytes per second: a shared file system in all, and a node's link."""

    file_system: float = 4e9
    link: float = 2.5e9
    node: float = 2e9
    """What one node reads, checks and writes at best."""
    start_s: float = 0.001
    """What a level of the tree adds before its first byte."""


def compute_direct_seconds(size: int, nodes: int, rates: Rates) -> float:
    """Return how long it takes if every node reads from the file system."""
    return max(nodes * size / rates.file_system, size / rates.node)


def compute_tree_seconds(size: int, nodes: int, rates: Rates) -> float:
    """Return how long it takes if one node reads, and each serves two others while it receives."""
    depth = (max(nodes, 1)).bit_length() - 1
    slowest = min(rates.node, rates.link / _CHILDREN, rates.file_system)
    return size / slowest + depth * rates.start_s


def is_tree_better(size: int, nodes: int, rates: Rates) -> bool:
    """Return whether a tree is faster, or as fast within a tenth: then it spares the file system."""
    if nodes < 2 or not size:  # noqa: PLR2004
        return False
    return compute_tree_seconds(size, nodes, rates) <= 1.1 * compute_direct_seconds(size, nodes, rates)


def list_providers(place: int) -> tuple[int, ...]:
    """Return from whom the node at a place of the tree gets data, nearest first.

    These are its ancestors, then the root's heir: if the root is lost, one node alone reads on from
    the source. A provider's place is always lower: nobody waits for a node that waits for it.
    """
    found: list[int] = []
    above = place
    while above > 0:
        above = (above - 1) // _CHILDREN
        found.append(above)
    return (*found, *([1] if place > 1 and 1 not in found else []))


def assign_providers(nodes: int, ready: Sequence[int] = ()) -> tuple[tuple[int, ...], ...]:
    """Return the providers of each of `nodes` nodes, as places.

    Nodes that are `ready` have all of it: the others get it from these, two at a time.
    """
    if not ready:
        return tuple(list_providers(place) for place in range(nodes))
    turned = [(*ready[first:], *ready[:first])[:3] for first in range(len(ready))]
    return tuple(() if place in ready else turned[place % len(ready)] for place in range(nodes))
