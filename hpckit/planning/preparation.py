"""Which nodes are too slow to prepare, and the failure that names nodes that cannot be prepared. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from hpckit.model.failure import Cause, Failure, Trait
from hpckit.model.nodes import suggests_shared_cause

SLOW_FACTOR = 5
"""A node is too slow if it needs this many times what half of the nodes needed at most."""
_LEAST_S = 60.0
_SHOWN = 3


def find_slow_nodes(
    waited_s: float, done: Sequence[float], waiting: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the nodes that are too slow, after so many seconds.

    `done` are the times of the others, `waiting` has each node's providers, nearest first: one that
    waits for a node that is itself waiting is not to blame. None before half of the nodes are there.
    """
    if not done or len(done) < len(waiting):
        return ()
    if waited_s < max(SLOW_FACTOR * median(done), _LEAST_S):
        return ()
    return tuple(node for node, providers in waiting.items() if not {*providers[:1]} & waiting.keys())


def build_preparation_failure(problems: Mapping[str, tuple[Cause, str]], nodes: int) -> Failure | None:
    """Return the failure of nodes that could not be prepared; None without any.

    No node is blamed for what no node could do, or what most have in common.
    """
    if not problems:
        return None
    lasting = [cause for cause, _ in problems.values() if cause.has_trait(Trait.lasting)]
    cause = (lasting or [cause for cause, _ in problems.values()])[0]
    told = dict.fromkeys(f"{node}: {problem}" for node, (_, problem) in problems.items())
    words = "; ".join([*told][:_SHOWN]) + (f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else "")
    shared = bool(lasting) or suggests_shared_cause(len(problems), nodes)
    blamed = None if shared else ", ".join(sorted(problems))
    return Failure(cause=cause, message=words, node=blamed, signature=f"{cause} {blamed or 'together'}")
