"""Which nodes a round gets. Pure.

Responsible for the choice among the nodes that are there, and for their order; it must not decide
whether there is to be a round (planning.decide does).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpckit.model.launch import Recovery
from hpckit.planning.recovery.ledger import Ledger


def without(standing: Sequence[str], left_out: Collection[str]) -> list[str]:
    """Return the nodes that are there and not left out, in their order."""
    return [node for node in standing if node not in left_out]


def placed(
    members: Sequence[str], good: Sequence[str], wanted: int, unwelcome: Collection[str] = ()
) -> tuple[str, ...]:
    """Return up to `wanted` good nodes: members keep their places, others fill the gaps.

    Those that are `unwelcome` are taken only where there are too few others.
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
    """Return the nodes of an attempt's first round: those that never failed first."""
    bad = past.excluded(policy)
    return tuple(sorted(standing, key=lambda node: node in bad)[:wanted])
