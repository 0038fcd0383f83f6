"""Has agents inspect their nodes, alone and in pairs, and keeps what is known of unhealthy ones.

What a finding means, and which pairs there are, is decided in planning.preflight; what follows from
it in planning.recovery.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from hpckit.model import events, messages
from hpckit.model.environment.facts import AskedOfNode
from hpckit.model.environment.health import HealthReport, HealthVerdict, NodeInspection
from hpckit.model.failure import Failure, Trait
from hpckit.model.settings import PreflightLevel, limit_s
from hpckit.planning.preflight.judge import (
    asked_of_node,
    inspection_level,
    judge_nodes,
    unhealthy_nodes,
)
from hpckit.planning.preflight.peers import (
    faster_pairs,
    is_uneven,
    neighbour_rounds,
    other_order,
    pair_findings,
)
from hpckit.planning.rounds.round_turns import AgentLost
from hpckit.runtime.channel.listen import LOOPBACK, is_loopback
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.agents import Agents, Peer
from hpckit.values import dataclass, field, replace

_PATIENCE_S = 3.0
"""For an answer to come, after the time that the agent itself has."""
_COMPARED = 3
"""From this many nodes on, an inspection says which of them differs from the others."""
_LEAST_S = 10.0
"""For pairs: importing torch takes seconds, so that with less left nothing would be measured."""
_PORT_S = 5.0

_Placed = tuple[Peer, tuple[str, ...]]
"""The agent of a node, and the devices that it adds with."""
_Answer = TypeVar("_Answer", messages.Inspected, messages.PairsMeasured)


@dataclass(slots=True, kw_only=True)
class NodeInspections:
    """The inspections of an attempt. `unhealthy` maps nodes to why they are avoided."""

    agents: Agents
    noticed: asyncio.Event
    record: Callable[[events.Event], None]
    unhealthy: dict[str, str] = field(default_factory=dict, init=False)
    _level: PreflightLevel = field(init=False)
    _asked: AskedOfNode = field(init=False)
    _known: dict[str, Peer] = field(default_factory=dict, init=False)
    """The agents that have inspected their nodes."""
    _told: dict[str, str] = field(default_factory=dict, init=False)
    _grounds: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    """How thorough the inspection was that found a node unhealthy, and whether it compared some."""
    _count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._level = inspection_level(self.agents.settings)
        self._asked = asked_of_node(self.agents.settings)

    def news(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return which of these nodes are unhealthy, and why, unless the caller knows by now."""
        found = {node: self.unhealthy[node] for node in nodes if node in self.unhealthy}
        news = {node: why for node, why in found.items() if self._told.get(node) != why}
        self._told |= news
        return news

    async def inspect_new(self) -> None:
        """Inspect the nodes whose agents have come, or come back, since the last time."""
        new = [peer for peer in self.agents.standing if self._known.get(peer.node) is not peer]
        await self._inspect(new, self._level, again=False)

    async def inspect_suspects(self, failure: Failure | None) -> None:
        """Inspect all nodes again after a failure that hardware may be behind; briefly."""
        if failure is not None and failure.cause.has(Trait.suspect):
            level = min(self._level, PreflightLevel.fast, key=_THOROUGHNESS.index)
            await self._inspect(list(self.agents.standing), level, again=True)

    async def _inspect(self, peers: Sequence[Peer], level: PreflightLevel, *, again: bool) -> None:
        if level is PreflightLevel.off or not peers or self.noticed.is_set():
            return
        began = time.monotonic()
        reports, lost = await self._reports(peers, level, again=again)
        if not reports:
            return
        if level is PreflightLevel.medium:
            deadline = began + limit_s(self.agents.settings.preflight, level)
            reports = await self._measure(peers, reports, deadline)
        self._known |= {peer.node: peer for peer in peers}
        inspections = judge_nodes(reports, level, self._asked, self.agents.settings)
        self._settle(inspections, level)
        fine = tuple(
            inspection.node for inspection in inspections if inspection.verdict is HealthVerdict.ok
        )
        self.record(
            events.NodesInspected(
                at=now(),
                level=level,
                took_s=round(time.monotonic() - began, 3),
                fine=fine,
                troubled=tuple(
                    inspection
                    for inspection in inspections
                    if inspection.verdict is not HealthVerdict.ok
                ),
                lost=lost,
            )
        )

    def _settle(self, inspections: Sequence[NodeInspection], level: PreflightLevel) -> None:
        """Keep who is unhealthy now.

        A node is no longer, if an inspection found it well that was as thorough and that compared
        it with others, if it was compared before.
        """
        answered = [
            inspection
            for inspection in inspections
            if inspection.verdict is not HealthVerdict.unknown
        ]
        now_known = (_THOROUGHNESS.index(level), int(len(answered) >= _COMPARED))
        for one in answered:
            before = self._grounds.get(one.node, (0, 0))
            if all(now >= then for now, then in zip(now_known, before, strict=True)):
                self.unhealthy.pop(one.node, None)
                self._grounds.pop(one.node, None)
        for node, why in unhealthy_nodes(inspections).items():
            self.unhealthy[node] = why
            self._grounds[node] = max(now_known, self._grounds.get(node, now_known))

    async def _reports(
        self, peers: Sequence[Peer], level: PreflightLevel, *, again: bool
    ) -> tuple[list[HealthReport], tuple[str, ...]]:
        """Return the answers of these nodes, and which were lost; none if a notice came first."""
        self._count += 1
        bound_s = limit_s(self.agents.settings.preflight, level)
        order = messages.Inspect(
            inspection=self._count,
            level=level,
            limit_s=bound_s,
            again=again,
            names=(peers[0].node,) if self._asked.nodes > 1 else (),
        )
        sent_at, sent_s = now(), time.monotonic()
        for peer in peers:
            await self.agents.send(peer.node_rank, order)
        reports: dict[str, HealthReport] = {}
        lost: list[str] = []
        patience_s = bound_s + _PATIENCE_S
        async for node, answer in self._answers(messages.Inspected, peers, patience_s):
            if answer is None:
                lost.append(node)
                continue
            # The clock may be set meanwhile.
            took = timedelta(seconds=time.monotonic() - sent_s)
            reports[node] = health_report(node, answer, sent_at, sent_at + took)
        if self.noticed.is_set():
            return [], ()
        late = (peer.node for peer in peers if peer.node not in {*reports, *lost})
        silent = [HealthReport(node=node, problem="no answer") for node in late]
        return [*reports.values(), *silent], tuple(lost)

    async def _answers(
        self, kind: type[_Answer], peers: Iterable[Peer], patience_s: float
    ) -> AsyncIterator[tuple[str, _Answer | None]]:
        """Yield the answers of these nodes to this inspection as they come; None of a lost one."""
        waiting = {peer.node_rank: peer.node for peer in peers}
        async for rank, message in self.agents.heard(patience_s, self.noticed):
            if isinstance(message, AgentLost) and rank in waiting:
                yield waiting.pop(rank), None
            elif (
                isinstance(message, kind) and message.inspection == self._count and rank in waiting
            ):
                yield waiting.pop(rank), message
            if not waiting:
                break

    async def _measure(
        self, peers: Sequence[Peer], reports: Sequence[HealthReport], deadline: float
    ) -> list[HealthReport]:
        """Return the reports with the bandwidth to each node's neighbours, until the deadline.

        If some pairs are slow, all measure once more with others, as far as time is left: what is
        slow once may be a disturbance, or its neighbours'. Unchanged with fewer than three nodes,
        with too little time, or at a notice.
        """
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
                inspection=self._count,
                limit_s=max(deadline - time.monotonic(), 0.1),
                devices=devices,
                pairs=tuple(own),
                host=host,
                port=port,
                serves=place == 0,
                everyone=everyone,
            )
            await self.agents.send(peer.node_rank, order)
        patience_s = deadline + _PATIENCE_S - time.monotonic()
        answers = self._answers(messages.PairsMeasured, (peer for peer, _ in placed), patience_s)
        told = {node: answer.pairs async for node, answer in answers if answer is not None}
        return [replace(report, pairs=told.get(report.node, ())) for report in reports]

    async def _reserved_port(self, first: Peer) -> int | None:
        """Return a port of this node for the store of all pairs; None if it does not answer."""
        await self.agents.send(first.node_rank, messages.ReservePort())
        async for rank, message in self.agents.heard(_PORT_S, self.noticed):
            if rank == first.node_rank and isinstance(message, messages.PortReserved):
                return message.port
            if rank == first.node_rank and isinstance(message, AgentLost):
                return None
        return None


_THOROUGHNESS = (PreflightLevel.off, PreflightLevel.fast, PreflightLevel.medium)


def health_report(
    node: str, answer: messages.Inspected, sent_at: datetime, heard_at: datetime
) -> HealthReport:
    """Return an answer with what it says of the node's clock.

    The node read its clock after the order was sent, and `took_s` before its answer came.
    """
    health = answer.health
    if health is not None and answer.xids:
        health = replace(health, xids=answer.xids)
    most = (answer.began_at - sent_at).total_seconds()
    least = (answer.began_at - heard_at).total_seconds() + answer.took_s
    return HealthReport(
        node=node,
        health=health,
        ahead_least_s=least,
        ahead_most_s=most,
        problem=answer.problem,
    )


def _placed(peers: Sequence[Peer], reports: Sequence[HealthReport]) -> list[_Placed]:
    """Return the nodes that can add, each with as many devices as the others."""
    devices = {
        report.node: tuple(speed.device for speed in report.health.speeds if not speed.problem)
        for report in reports
        if report.health is not None
    }
    able = [(peer, devices[peer.node]) for peer in peers if devices.get(peer.node)]
    fewest = min((len(own) for _, own in able), default=0)
    return [(peer, own[:fewest]) for peer, own in able]


def master_host(members: Sequence[Peer]) -> str:
    """Return the address by which the nodes of a round reach the node of rank 0."""
    first = members[0]
    return LOOPBACK if len(members) == 1 else address_of(first, members) or first.node


def address_of(member: Peer, members: Sequence[Peer]) -> str:
    """Return the address by which the other members reach the node of one; empty if none is known.

    The address from which its agent connects is the one that routes between nodes. An agent on
    this host connects over loopback; then it is the address by which another agent reaches us.
    """
    others = (peer.channel.here for peer in members if peer is not member)
    return next(
        (address for address in (member.channel.peer, *others) if not is_loopback(address)), ""
    )
