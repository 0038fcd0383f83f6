"""Measures the groups that a search for a slow node asks for; rank 0 runs the search.

In a group every node exchanges a message with every other one at once: each local rank with the
same local rank there, so that all networks of a node carry their part.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from hpckit.experiments.interconnect.agreement import decided, gathered
from hpckit.experiments.interconnect.operations import ELEMENT, RankWorld, exchange
from hpckit.experiments.interconnect.sweep import timed
from hpckit.model.interconnect.measurement import NodeGroupTime, SlowParts, SlowSearch
from hpckit.model.interconnect.operation import SearchMode
from hpckit.planning.interconnect.search import Search, search_slow
from hpckit.planning.interconnect.slow_parts import find_slow_parts, slow_factor
from hpckit.planning.interconnect.tournament import Group, Round

_REPEATS = 7
_PAIR = 2
_EARLY = "the search ended early: its time was spent"


@dataclass(slots=True, kw_only=True)
class NodeSearch:
    """A search with messages of `size` bytes that may take `time_s`; only rank 0 has `search`."""

    nodes: int
    mode: SearchMode
    size: int
    time_s: float
    world: RankWorld
    seen: list[NodeGroupTime] = field(default_factory=list)
    rounds: int = 0

    def run(self) -> SlowSearch:
        """Return what was found, on rank 0; each rank must call it."""
        search = search_slow(self.nodes, self.mode) if self.world.rank == 0 else None
        began, found, why = time.monotonic(), SlowParts(), ""
        groups: Round | None = next(search) if search is not None else ()
        while True:
            if search is not None and groups and time.monotonic() - began > self.time_s:
                groups, why, found = None, _EARLY, self._found_so_far()
            agreed = decided(groups, self.world)
            if agreed is None:
                break
            times = self._measure([tuple(one) for one in agreed])
            if search is not None:
                groups, found = _advance(search, times)
        return SlowSearch(
            mode=self.mode,
            size=self.size,
            rounds=self.rounds,
            groups=tuple(self.seen),
            found=found,
            why_not=why,
        )

    def _measure(self, groups: Sequence[Group]) -> list[NodeGroupTime]:
        """Return the times of these groups; the other nodes wait."""
        own = self.world.rank // self.world.ranks_per_node
        mine = next((group for group in groups if own in group), ())
        peers = [
            node * self.world.ranks_per_node + self.world.rank % self.world.ranks_per_node
            for node in mine
            if node != own
        ]
        count = max(1, self.size // ELEMENT)
        sent = torch.ones(count, device=self.world.device)
        received = [torch.empty_like(sent) for _ in peers]

        def act() -> None:
            exchange([(sent, peer) for peer in peers], list(zip(received, peers, strict=True)))

        timed(act, self.world)
        seconds = gathered([timed(act, self.world) for _ in range(_REPEATS)], self.world)
        times = [_group_time(group, seconds, self.world.ranks_per_node) for group in groups]
        self.rounds += 1
        self.seen += times
        return times

    def _found_so_far(self) -> SlowParts:
        pairs = {one.nodes: one.seconds for one in self.seen if len(one.nodes) == _PAIR}
        return find_slow_parts(pairs, slow_factor(self.seen))


def _group_time(
    group: Group, seconds: Sequence[Sequence[float]], ranks_per_node: int
) -> NodeGroupTime:
    """Return the median repeat of a group; each takes as long as its slowest rank.

    The best one would hide a link that is fast for a moment, until a buffer or a quota is full.
    """
    members = [own for rank, own in enumerate(seconds) if rank // ranks_per_node in group]
    repeats = [max(each) for each in zip(*members, strict=True)]
    middle = median(repeats)
    return NodeGroupTime(nodes=group, seconds=middle, spread=middle / min(repeats) - 1)


def _advance(search: Search, times: list[NodeGroupTime]) -> tuple[Round | None, SlowParts]:
    """Return the next round and nothing found; or None and what was found."""
    try:
        return search.send(times), SlowParts()
    except StopIteration as end:
        return None, end.value
