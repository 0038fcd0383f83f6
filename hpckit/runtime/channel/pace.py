"""How often supervisor and agents send messages, and how long a silent one is waited for. Pure.

Bounds the messages that a supervisor of thousands of nodes receives.
"""

from __future__ import annotations

BEAT_S = 1.0
"""Interval between signs of life of supervisor and agents, up to some hundreds of nodes."""

PATIENCE = 5
"""How many node timeouts to wait for a node that is there but silent.

Its machine answers, so it is probably held up, by a file system or by other work, rather than lost.
"""

_HEARD_PER_S = 500
"""Maximum messages per second to an idle supervisor: some hundredths of a core."""

_BEATS = 3
"""A node timeout has room for this many beats, so that a late beat is not yet a missed one."""

_TOGETHER = 8
"""If this many nodes fall silent at once, the cause is something that they share."""


def message_interval_s(nodes: int, node_timeout_s: float, *, least_s: float = BEAT_S) -> float:
    """Return the interval between the messages of each of `nodes` nodes, in seconds.

    It grows with the number of nodes, but stays short enough that a node timeout never passes
    between two messages.
    """
    return max(least_s, min(nodes / _HEARD_PER_S, node_timeout_s / _BEATS))


def are_many_nodes_delayed(quiet_s: list[float], node_timeout_s: float) -> bool:
    """Return whether the quiet nodes are held up rather than lost, provided their kernels live.

    True if many are quiet for more than half a node timeout. A single node may be lost or stopped by itself.
    Many at once are short of time, as on an overloaded machine, or wait for the same file system.
    """
    return sum(quiet > node_timeout_s / 2 for quiet in quiet_s) >= _TOGETHER
