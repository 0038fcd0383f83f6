"""Has agents inspect their nodes, alone and in pairs.

What a finding means, and which pairs there are, is decided in planning.preflight; what follows from
it in planning.recovery.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from hpckit.model import events, messages
from hpckit.model.environment.facts import AskedOfNode
from hpckit.model.environment.health import HealthReport, HealthVerdict
from hpckit.model.failure import Failure, Trait
from hpckit.model.settings import PreflightLevel, preflight_answer_limit_s
from hpckit.planning.preflight.judge import (
    KnownHealth,
    build_health_report_of_node,
    choose_preflight_level,
    judge_node_health,
    list_node_requirements,
)
from hpckit.planning.preflight.peers import (
    are_pair_rates_uneven,
    find_nodes_slow_with_neighbours,
    keep_faster_pair_rates,
    plan_neighbour_rounds,
    reorder_with_new_neighbours,
)
from hpckit.planning.rounds.round_turns import AgentLost
from hpckit.runtime.channel.listen import LOOPBACK, is_loopback
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.callers import Peer
from hpckit.runtime.supervisor.journal import Journal
from hpckit.values import dataclass, field, replace

_PATIENCE_S = 3.0
"""For an answer to come, after the time that the agent itself has."""
_LEAST_S = 10.0
"""For pairs: importing torch takes seconds, so that with less left nothing would be measured."""
_PORT_S = 5.0

_AddingNode = tuple[Peer, tuple[str, ...]]
"""The agent of a node, and the devices that it adds with."""
_Answer = TypeVar("_Answer", messages.Inspected, messages.PairsMeasured)


@dataclass(slots=True)
class NodeInspections:
    """The inspections of an attempt."""

    agents: Agents
    journal: Journal
    noticed: asyncio.Event
    health: KnownHealth = field(default_factory=KnownHealth, init=False)
    _level: PreflightLevel = field(init=False)
    _asked: AskedOfNode = field(init=False)
    _inspected: dict[str, Peer] = field(default_factory=dict, init=False)
    """The agents that have inspected their nodes."""
    _told: dict[str, str] = field(default_factory=dict, init=False)
    _count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._level = choose_preflight_level(self.agents.settings)
        self._asked = list_node_requirements(self.agents.settings)

    @property
    def unhealthy(self) -> Mapping[str, str]:
        """The nodes that are avoided, and why."""
        return self.health.unhealthy

    def list_newly_unhealthy_nodes(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return which of these nodes are unhealthy, and why, unless this was returned before."""
        found = {node: self.unhealthy[node] for node in nodes if node in self.unhealthy}
        news = {node: why for node, why in found.items() if self._told.get(node) != why}
        self._told |= news
        return news

    async def inspect_new_nodes(self) -> None:
        """Inspect the nodes whose agents have come, or come back, since the last time."""
        new = [peer for peer in self.agents.standing_peers if self._inspected.get(peer.node) is not peer]
        await self._inspect_nodes(new, self._level, again=False)

    async def reinspect_nodes_after_failure(self, failure: Failure | None) -> None:
        """Inspect all nodes again after a failure that hardware may be behind; briefly."""
        if failure is not None and failure.cause.has_trait(Trait.suspect):
            peers, level = list(self.agents.standing_peers), self._level
            level = PreflightLevel.fast if level is PreflightLevel.medium else level
            await self._inspect_nodes(peers, level, again=True)

    async def _inspect_nodes(self, peers: Sequence[Peer], level: PreflightLevel, *, again: bool) -> None:
        if level is PreflightLevel.off or not peers or self.noticed.is_set():
            return
        began = time.monotonic()
        reports, lost = await self._collect_reports(peers, level, again=again)
        if not reports:
            return
        if level is PreflightLevel.medium:
            deadline = began + preflight_answer_limit_s(self.agents.settings.preflight, level)
            reports = await self._measure_bandwidths(peers, reports, deadline)
        self._inspected |= {peer.node: peer for peer in peers}
        inspections = judge_node_health(reports, level, self._asked, self.agents.settings)
        self.health = self.health.after_inspection(inspections, level)
        self.journal.record_event(
            events.NodesInspected(
                at=now(),
                level=level,
                took_s=round(time.monotonic() - began, 3),
                fine=tuple(
                    inspection.node for inspection in inspections if inspection.verdict is HealthVerdict.ok
                ),
                troubled=tuple(
                    inspection for inspection in inspections if inspection.verdict is not HealthVerdict.ok
                ),
                lost=lost,
            )
        )

    async def _collect_reports(
        self, peers: Sequence[Peer], level: PreflightLevel, *, again: bool
    ) -> tuple[list[HealthReport], tuple[str, ...]]:
        """Return the answers of these nodes, and which were lost; none if a notice came first."""
        self._count += 1
        bound_s = preflight_answer_limit_s(self.agents.settings.preflight, level)
        order = messages.Inspect(
            inspection=self._count,
            level=level,
            limit_s=bound_s,
            again=again,
            names=(peers[0].node,) if self._asked.nodes > 1 else (),
        )
        sent_at, sent_s = now(), time.monotonic()
        for peer in peers:
            await self.agents.send_message(peer.node_rank, order)
        reports: dict[str, HealthReport] = {}
        lost: list[str] = []
        patience_s = bound_s + _PATIENCE_S
        async for node, answer in self._receive_inspection_answers(messages.Inspected, peers, patience_s):
            if answer is None:
                lost.append(node)
                continue
            # The clock may be set meanwhile.
            took = timedelta(seconds=time.monotonic() - sent_s)
            reports[node] = build_health_report_of_node(node, answer, sent_at, sent_at + took)
        if self.noticed.is_set():
            return [], ()
        late = (peer.node for peer in peers if peer.node not in {*reports, *lost})
        silent = [HealthReport(node=node, problem="no answer") for node in late]
        return [*reports.values(), *silent], tuple(lost)

    async def _receive_inspection_answers(
        self, kind: type[_Answer], peers: Iterable[Peer], patience_s: float
    ) -> AsyncIterator[tuple[str, _Answer | None]]:
        """Yield the answers of these nodes to this inspection as they come; None of a lost one."""
        waiting = {peer.node_rank: peer.node for peer in peers}
        async for rank, message in self.agents.receive_until_stop_signal(patience_s, self.noticed):
            if isinstance(message, AgentLost) and rank in waiting:
                yield waiting.pop(rank), None
            elif isinstance(message, kind) and message.inspection == self._count and rank in waiting:
                yield waiting.pop(rank), message
            if not waiting:
                break

    async def _measure_bandwidths(
        self, peers: Sequence[Peer], reports: Sequence[HealthReport], deadline: float
    ) -> list[HealthReport]:
        """Return the reports with the bandwidth to each node's neighbours, until the deadline.

        If some pairs are slow, all measure once more with others, as far as time is left: what is
        slow once may be a disturbance, or its neighbours'. Unchanged with fewer than three nodes,
        with too little time, or at a notice.
        """
        placed = _select_nodes_to_pair(peers, reports)
        found = await self._measure_node_pairs(placed, reports, deadline)
        if are_pair_rates_uneven(found) or any(find_nodes_slow_with_neighbours(found)):
            others = [placed[place] for place in reorder_with_new_neighbours(len(placed))]
            return keep_faster_pair_rates(found, await self._measure_node_pairs(others, reports, deadline))
        return found

    async def _measure_node_pairs(
        self, placed: Sequence[_AddingNode], reports: Sequence[HealthReport], deadline: float
    ) -> list[HealthReport]:
        orders = plan_neighbour_rounds(len(placed))
        if not orders or deadline - time.monotonic() < _LEAST_S:
            return list(reports)
        port = await self._reserve_store_port_on_node(placed[0][0])
        if port is None:
            return list(reports)
        pairs = [pair for each in orders for pair in each]
        host = find_master_host([peer for peer, _ in placed])
        everyone = sum(len(devices) for _, devices in placed)
        for place, (peer, devices) in enumerate(placed):
            own = [
                (number, placed[pair[1 - pair.index(place)]][0].node, pair[0] == place)
                for number, pair in enumerate(pairs)
                if place in pair
            ]
            order = messages.MeasurePairs(
                inspection=self._count,
                limit_s=max(deadline - time.monotonic(), 0.1),
                devices=devices,
                pairs=tuple(own),
                host=host,
                port=port,
                serves=place == 0,
                everyone=everyone,
            )
            await self.agents.send_message(peer.node_rank, order)
        patience_s = deadline + _PATIENCE_S - time.monotonic()
        answers = self._receive_inspection_answers(
            messages.PairsMeasured, (peer for peer, _ in placed), patience_s
        )
        told = {node: answer.pairs async for node, answer in answers if answer is not None}
        return [replace(report, pairs=told.get(report.node, ())) for report in reports]

    async def _reserve_store_port_on_node(self, first: Peer) -> int | None:
        """Return a port of this node for the store of all pairs; None if it does not answer."""
        await self.agents.send_message(first.node_rank, messages.ReservePort())
        async for rank, message in self.agents.receive_until_stop_signal(_PORT_S, self.noticed):
            if rank == first.node_rank and isinstance(message, messages.PortReserved):
                return message.port
            if rank == first.node_rank and isinstance(message, AgentLost):
                return None
        return None


def _select_nodes_to_pair(peers: Sequence[Peer], reports: Sequence[HealthReport]) -> list[_AddingNode]:
    """Return the nodes that can add, each with as many devices as the others."""
    devices = {
        report.node: tuple(speed.device for speed in report.health.speeds if not speed.problem)
        for report in reports
        if report.health is not None
    }
    able = [(peer, devices[peer.node]) for peer in peers if devices.get(peer.node)]
    fewest = min((len(own) for _, own in able), default=0)
    return [(peer, own[:fewest]) for peer, own in able]


def find_master_host(members: Sequence[Peer]) -> str:
    """Return the address by which the nodes of a round reach the node of rank 0."""
    first = members[0]
    return LOOPBACK if len(members) == 1 else find_address_for_other_nodes(first, members) or first.node


def find_address_for_other_nodes(member: Peer, members: Sequence[Peer]) -> str:
    """Return the address by which the other members reach the node of one; empty if none is known.

    The address from which its agent connects is the one that routes between nodes. An agent on
    this host connects over loopback; then it is the address by which another agent reaches us.
    """
    others = (peer.channel.here for peer in members if peer is not member)
    return next((address for address in (member.channel.peer, *others) if not is_loopback(address)), "")
