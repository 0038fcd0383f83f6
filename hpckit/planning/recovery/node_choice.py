"""Chooses the nodes of a round, and their order. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpckit.model.launch import Recovery
from hpckit.planning.recovery.ledger import Ledger


def without(standing: Sequence[str], left_out: Collection[str]) -> list[str]:
    """Return the available nodes that are not left out, in their order."""
    return [node for node in standing if node not in left_out]


def placed(
    members: Sequence[str], good: Sequence[str], wanted: int, unwelcome: Collection[str] = ()
) -> tuple[str, ...]:
    """Return up to `wanted` good nodes: members keep their places, others fill the gaps.

    `unwelcome` nodes are taken only if there are too few others.
    """
    good = sorted(good, key=lambda node: (node in unwelcome, node not in members))[:wanted]
    spares = without(good, members)
    places: list[str] = []
    for member in [*members, *([""] * (wanted - len(members)))]:
        if member in good:
            places.append(member)
        elif spares:
            places.append(spares.pop(0))
    return tuple(places[:wanted])


def first_nodes(
    standing: Sequence[str], past: Ledger, policy: Recovery, wanted: int
) -> tuple[str, ...]:
    """Return the nodes of an attempt's first round, preferring nodes that are not excluded."""
    bad = past.excluded(policy)
    return tuple(sorted(standing, key=lambda node: node in bad)[:wanted])
