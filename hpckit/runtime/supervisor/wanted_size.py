"""How many nodes a run is to have, who asked for that, and which nodes its rounds had."""

from __future__ import annotations

import asyncio

from hpckit.planning.recovery.node_choice import RoundSizes
from hpckit.planning.recovery.run_size import RunSize, build_run_size
from hpckit.runtime.supervisor.agents import Agents
from hpckit.values import dataclass, field


@dataclass(slots=True)
class WantedSize:
    """The size that a run is to have.

    `asked` is whether it was asked for another one, and may be restarted for it; `news` is set when
    that happens.
    """

    agents: Agents
    size: RunSize = field(init=False)
    asked: bool = field(default=False, init=False)
    news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    unasked: set[str] = field(default_factory=set, init=False)
    """Satellites that no user asked for: they wait until growing is worth its restart."""
    grown_from: tuple[str, ...] = field(default=(), init=False)
    """The members of the round before, if the present one has these and more."""
    _members: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.size = build_run_size(self.agents.settings)

    @property
    def round_sizes(self) -> RoundSizes:
        """How many nodes a round may have; fewer than configured if the user said so."""
        wanted = self.size.count_wanted_nodes(self.count_staying_satellite_nodes())
        resources = self.agents.settings.resources
        fewest = resources.min_nodes or resources.nodes
        return RoundSizes(
            wanted=wanted,
            fewest=min(fewest, wanted or fewest),
            replica_nodes=self.size.replica_nodes,
            fallback=self.size.fallback_nodes,
        )

    @property
    def is_round_losing_satellites(self) -> bool:
        """Whether the present round is to leave because nodes of a satellite leave it."""
        here = {peer.node: peer for peer in self.agents.peers.values()}
        members = (here.get(node) for node in self._members)
        return self.asked and any(member is None or member.leaving for member in members)

    def count_staying_satellite_nodes(self) -> int:
        """Return how many nodes of satellites stay."""
        return sum(peer.satellite is not None for peer in self.agents.standing_peers)

    def resize_if_satellites_changed(self) -> None:
        """Note that a node of a satellite has joined, or is to leave."""
        peers = (peer for peer in self.agents.peers.values() if peer.satellite is not None)
        if any(peer.leaving or peer.satellite not in self.unasked for peer in peers):
            self.ask_for_resize()

    def ask_for_resize(self) -> None:
        """Have the run continue in another size as soon as it can."""
        self.asked = True
        self.news.set()

    def record_round_members(self, members: tuple[str, ...]) -> None:
        """Note which nodes a new round has."""
        more = len(members) > len(self._members) and {*self._members} <= {*members}
        self.grown_from = self._members if more else ()
        self._members = members

    def keep_request_if_satellites_wait(self) -> None:
        """Stay asked for another size only if a user's satellite waits outside of the round."""
        waiting = (peer for peer in self.agents.standing_peers if peer.node not in self._members)
        self.asked = any(peer.satellite not in {None, *self.unasked} for peer in waiting)
