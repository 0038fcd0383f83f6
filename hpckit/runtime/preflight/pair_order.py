"""What the processes of an inspection are told that add with other nodes. Imports no torch."""

from __future__ import annotations

from hpckit.values import dataclass

MARK = "hpckit-pair:"
"""What is imported may print, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOrder:
    """What a node is to measure within `limit_s` seconds, with `devices`: UUIDs, or `cpu`.

    `pairs` has a number of each pair, and whether this node is its first one. The store for all
    pairs listens at `host` and `port`; this node serves it if `serves`, until `everyone`, as many
    processes as there are on all nodes, is done.
    """

    limit_s: float
    devices: tuple[str, ...]
    pairs: tuple[tuple[int, bool], ...]
    host: str
    port: int
    serves: bool
    everyone: int
