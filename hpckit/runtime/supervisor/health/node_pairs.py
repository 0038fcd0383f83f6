"""Has nodes add with their neighbours, and takes what they measured into their reports.

Which pairs there are, and what their speeds mean, is decided in planning.preflight.pairs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from hpckit.model.preflight.health import HealthReport, PairRate
from hpckit.planning.preflight.pairs import (
    faster_pairs,
    is_uneven,
    neighbour_rounds,
    other_order,
    pair_findings,
)
from hpckit.runtime.channel import messages
from hpckit.runtime.supervisor.agents import AgentLost, Agents, Peer
from hpckit.runtime.supervisor.round_start import master_host
from hpckit.values import dataclass, replace

_LEAST_S = 10.0
"""Importing torch takes seconds: with less time left, nothing would be measured."""
_PATIENCE_S = 3.0
_PORT_S = 5.0

_Placed = tuple[Peer, tuple[str, ...]]
"""The agent of a node, and the devices that it adds with."""


@dataclass(slots=True, kw_only=True)
class NodePairs:
    """The sums of one inspection between nodes that have told how fast their devices are."""

    agents: Agents
    noticed: asyncio.Event
    inspection: int

    async def measure(
        self, peers: Sequence[Peer], reports: Sequence[HealthReport], left_s: float
    ) -> list[HealthReport]:
        """Return the reports with the bandwidth to each node's neighbours, in `left_s` seconds.

        If some pairs are slow, all measure once more with others, as far as time is left: what is
        slow once may be a disturbance, or its neighbours'. Unchanged with fewer than three nodes,
        with too little time, or at a notice.
        """
        deadline = time.monotonic() + left_s
        placed = _placed(peers, reports)
        found = await self._measure_once(placed, reports, deadline)
        if is_uneven(found) or any(pair_findings(found)):
            others = [placed[place] for place in other_order(len(placed))]
            return faster_pairs(found, await self._measure_once(others, reports, deadline))
        return found

    async def _measure_once(
        self, placed: Sequence[_Placed], reports: Sequence[HealthReport], deadline: float
    ) -> list[HealthReport]:
        orders = neighbour_rounds(len(placed))
        if not orders or deadline - time.monotonic() < _LEAST_S:
            return list(reports)
        port = await self._reserved_port(placed[0][0])
        if port is None:
            return list(reports)
        pairs = [pair for each in orders for pair in each]
        host = master_host([peer for peer, _ in placed])
        everyone = sum(len(devices) for _, devices in placed)
        for place, (peer, devices) in enumerate(placed):
            own = [
                (number, placed[pair[1 - pair.index(place)]][0].node, pair[0] == place)
                for number, pair in enumerate(pairs)
                if place in pair
            ]
            order = messages.MeasurePairs(
                inspection=self.inspection,
                limit_s=max(deadline - time.monotonic(), 0.1),
                devices=devices,
                pairs=tuple(own),
                host=host,
                port=port,
                serves=place == 0,
                everyone=everyone,
            )
            await self.agents.send(peer.node_rank, order)
        told = await self._answers({peer.node_rank: peer.node for peer, _ in placed}, deadline)
        return [replace(one, pairs=told.get(one.node, ())) for one in reports]

    async def _reserved_port(self, first: Peer) -> int | None:
        """Return a port of this node for the store of all pairs; None if it does not answer."""
        await self.agents.send(first.node_rank, messages.ReservePort())
        async for rank, message in self.agents.heard(_PORT_S, self.noticed):
            if rank == first.node_rank and isinstance(message, messages.PortReserved):
                return message.port
            if rank == first.node_rank and isinstance(message, AgentLost):
                return None
        return None

    async def _answers(
        self, waiting: dict[int, str], deadline: float
    ) -> Mapping[str, tuple[PairRate, ...]]:
        found: dict[str, tuple[PairRate, ...]] = {}
        limit_s = deadline + _PATIENCE_S - time.monotonic()
        async for rank, message in self.agents.heard(limit_s, self.noticed):
            if isinstance(message, AgentLost):
                waiting.pop(rank, None)
            elif (
                isinstance(message, messages.PairsMeasured)
                and message.inspection == self.inspection
                and rank in waiting
            ):
                found[waiting.pop(rank)] = message.pairs
            if not waiting:
                break
        return found


def _placed(peers: Sequence[Peer], reports: Sequence[HealthReport]) -> list[_Placed]:
    """Return the nodes that can add, each with as many devices as the others."""
    devices = {
        one.node: tuple(speed.device for speed in one.health.speeds if not speed.problem)
        for one in reports
        if one.health is not None
    }
    able = [(peer, devices[peer.node]) for peer in peers if devices.get(peer.node)]
    fewest = min((len(own) for _, own in able), default=0)
    return [(peer, own[:fewest]) for peer, own in able]
