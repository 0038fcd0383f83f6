"""How often supervisor and agents speak, and how long who does not speak is waited for. Pure.

Responsible for bounds on what a supervisor of thousands of nodes hears; it must not know what is
said, nor read a clock.
"""

from __future__ import annotations

BEAT_S = 1.0
"""How often supervisor and agents give each other a sign of life, up to some hundreds of nodes."""

PATIENCE = 5
"""How many node timeouts are waited for who is there and does not speak: its machine answers, so
that it is held up, by a file system or by other work, rather than lost."""

_HEARD_PER_S = 500
"""What a supervisor has to hear a second, at most, while nothing happens: some hundredths of a
core."""

_BEATS = 3
"""A node timeout has room for so many beats: one that comes late is not missed yet."""

_TOGETHER = 8
"""So many nodes that fall silent at once do so of something that they share."""


def pace_s(nodes: int, node_timeout_s: float, *, least_s: float = BEAT_S) -> float:
    """Return how far apart the words of one of so many nodes are, in seconds.

    They slow down with the number of nodes, but never so far that a node timeout passes for it.
    """
    return max(least_s, min(nodes / _HEARD_PER_S, node_timeout_s / _BEATS))


def is_held_up(quiet_s: list[float], node_timeout_s: float) -> bool:
    """Whether so many nodes are quiet for so long that they are held up, where their kernels live.

    One may be lost or stopped by itself. Many at once are short of time, as on an overloaded
    machine, or wait for the same file system.
    """
    return sum(one > node_timeout_s / 2 for one in quiet_s) >= _TOGETHER
