"""When so many nodes fail at once that none of them is to blame. Pure."""

from __future__ import annotations

_MANY = 8


def shared_cause(failing: int, nodes: int) -> bool:
    """Return whether most of eight or more nodes fail: then it is something that they share.

    A network, a file system, a configuration: other nodes would fail alike.
    """
    return nodes >= _MANY and 2 * failing > nodes
