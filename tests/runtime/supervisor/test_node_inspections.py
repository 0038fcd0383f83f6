"""What the supervisor makes of its nodes' answers: when they came, and whom it remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from planning.preflight.healthy_nodes import FINE, NOON, SETTINGS, SPEED

from hpckit.model import messages
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import LaunchConfig
from hpckit.model.settings import Preflight, PreflightLevel
from hpckit.planning.preflight.judge import (
    build_health_report_of_node,
    judge_node_health,
    list_node_requirements,
    list_unhealthy_nodes,
)
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor import node_inspections


def test_clock_that_is_set_back_meanwhile_blames_nobody() -> None:
    """The supervisor's: of the answers that came after it, nothing is known."""
    answer = messages.Inspected(inspection=1, began_at=NOON + timedelta(seconds=0.1), took_s=2.0, health=FINE)
    heard = [2.2, 2.3, 2.4 - 60, 2.5 - 60]
    reports = [
        build_health_report_of_node(f"n{n}", answer, NOON, NOON + timedelta(seconds=s))
        for n, s in enumerate(heard)
    ]
    found = judge_node_health(reports, PreflightLevel.fast, list_node_requirements(SETTINGS), SETTINGS)
    assert list_unhealthy_nodes(found) == {}


@dataclass(frozen=True, slots=True)
class Stub:
    """An agent: its node, and the number of that."""

    node: str
    node_rank: int


@dataclass(slots=True)
class StubAgents:
    """Agents that answer at once; at `medium` the first one's device computes other results."""

    standing_peers: list[Stub]
    answers: list[tuple[int, messages.Message]] = field(default_factory=list)
    mended: bool = False
    settings: LaunchConfig = field(
        default=replace(SETTINGS, preflight=Preflight(level=PreflightLevel.medium))
    )

    async def send_message(self, rank: int, order: messages.Message) -> None:
        """Answer an order to inspect."""
        if not isinstance(order, messages.Inspect):
            return
        wrong = rank == 0 and not self.mended
        speeds = (replace(SPEED, checksum="b" if wrong else "a"),)
        health = replace(FINE, speeds=speeds if order.level is PreflightLevel.medium else ())
        answer = messages.Inspected(inspection=order.inspection, began_at=now(), took_s=0.0, health=health)
        self.answers.append((rank, answer))

    async def receive_until_stop_signal(
        self, _: float, __: asyncio.Event
    ) -> AsyncIterator[tuple[int, messages.Message]]:
        """Yield the answers."""
        while self.answers:
            yield self.answers.pop(0)


def test_node_that_computes_wrong_results_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash has all nodes inspected `fast`, which computes nothing; nor does it alone suffice."""

    async def unmeasured(_: object, __: object, reports: object, ___: float) -> object:
        return reports

    monkeypatch.setattr(node_inspections.NodeInspections, "_measure_bandwidths", unmeasured)
    agents = StubAgents([Stub(f"n{n}", n) for n in range(4)])
    inspections = node_inspections.NodeInspections(
        agents=agents,  # type: ignore[arg-type]
        noticed=asyncio.Event(),
        journal=SimpleNamespace(record_event=lambda _: None),  # type: ignore[arg-type]  # no file
    )
    crash = Failure(cause=Cause.crash, message="x", node="n2", signature="x")

    async def go() -> list[set[str]]:
        known = []
        await inspections.inspect_new_nodes()
        known.append(set(inspections.unhealthy))
        await inspections.reinspect_nodes_after_failure(crash)
        known.append(set(inspections.unhealthy))
        agents.mended = True
        agents.standing_peers[0] = Stub("n0", 0)
        await inspections.inspect_new_nodes()
        known.append(set(inspections.unhealthy))
        agents.standing_peers[:] = [Stub(f"n{n}", n) for n in range(4)]
        await inspections.inspect_new_nodes()
        known.append(set(inspections.unhealthy))
        return known

    # Alone it is compared with nobody; among the others it is well again.
    assert asyncio.run(go()) == [{"n0"}, {"n0"}, {"n0"}, set()]
