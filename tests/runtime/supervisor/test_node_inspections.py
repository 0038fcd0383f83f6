"""What hostile readers found in preflight: healthy nodes blamed, bad ones forgotten."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.environment.facts import (
    DriverFacts,
    EnvironmentFacts,
    PythonFacts,
    TorchFacts,
)
from hpckit.model.events import Event
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import LaunchConfig, Resources
from hpckit.model.preflight.health import DeviceSpeed, HealthReport, NodeHealth, PairRate
from hpckit.model.preflight.settings import Preflight, PreflightLevel
from hpckit.planning.preflight.judge import asked_of_node, judge_nodes, unhealthy_nodes
from hpckit.planning.preflight.pairs import faster_pairs, is_uneven, neighbour_rounds, other_order
from hpckit.runtime.channel import messages
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor import node_inspections

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = LaunchConfig(entry_point="train:main", resources=Resources(nodes=4))
FINE = NodeHealth(
    environment=EnvironmentFacts(
        host="n",
        at=NOON,
        system="Linux",
        kernel="6",
        memory_bytes=2**37,
        python=PythonFacts(version="3.11", executable="/python", hpckit="1"),
        torch=TorchFacts(installed=True, version="2.9"),
        driver=DriverFacts(),
    ),
    gpus=(),
)
SPEED = DeviceSpeed(device="cpu", name="CPU", matmul_flops=1e12, checksum="a", repeats=True)


def blamed(
    reports: list[HealthReport], level: PreflightLevel = PreflightLevel.fast
) -> dict[str, str]:
    """Return the nodes that a run avoids after an inspection with these answers."""
    return unhealthy_nodes(judge_nodes(reports, level, asked_of_node(SETTINGS), SETTINGS))


@pytest.mark.parametrize("count", [4, 6])
def test_half_of_the_clocks_blame_nobody(count: int) -> None:
    """What half of them shows is not what most do: a warning for each."""
    reports = [
        HealthReport(
            node=f"n{n}", health=FINE, ahead_least_s=100.0 * (n % 2), ahead_most_s=100.0 * (n % 2)
        )
        for n in range(count)
    ]
    assert blamed(reports) == {}
    found = judge_nodes(reports, PreflightLevel.fast, asked_of_node(SETTINGS), SETTINGS)
    words = {each.message for one in found for each in one.findings if each.check == "clock"}
    assert "the clock of n1 is 100 s ahead of that of another node" in words
    assert "the clock of n0 is 100 s behind that of another node" in words


def test_clock_that_is_set_back_meanwhile_blames_nobody() -> None:
    """The supervisor's: of the answers that came after it, nothing is known."""
    answer = messages.Inspected(
        inspection=1, began_at=NOON + timedelta(seconds=0.1), took_s=2.0, health=FINE
    )
    heard = [2.2, 2.3, 2.4 - 60, 2.5 - 60]
    reports = [
        node_inspections.health_report(f"n{n}", answer, NOON, NOON + timedelta(seconds=s))
        for n, s in enumerate(heard)
    ]
    assert blamed(reports) == {}


def test_two_of_seven_are_not_most_nodes() -> None:
    """A version that only two share is no measure for the other five."""

    def with_torch(version: str) -> NodeHealth:
        facts = FINE.environment
        return replace(
            FINE, environment=replace(facts, torch=replace(facts.torch, version=version))
        )

    few = [HealthReport(node=f"n{n}", health=with_torch(v)) for n, v in enumerate("aabcdef")]
    assert blamed(few) == {}
    most = [HealthReport(node=f"n{n}", health=with_torch(v)) for n, v in enumerate("aaaabcd")]
    assert sorted(blamed(most)) == ["n4", "n5", "n6"]


def test_clock_that_agrees_with_a_slow_answer_is_not_odd() -> None:
    """Two of three may be right with either of the others: nobody is blamed."""
    bounds = [(-50.0, 50.0), (0.0, 0.1), (40.0, 40.1)]
    reports = [
        HealthReport(node=f"n{n}", health=FINE, ahead_least_s=least, ahead_most_s=most)
        for n, (least, most) in enumerate(bounds)
    ]
    assert blamed(reports) == {}
    endless = HealthReport(node="n3", health=FINE, ahead_least_s=-math.inf, ahead_most_s=math.inf)
    assert blamed([*reports, endless]) == {}


def pairs_of(order: tuple[int, ...], slow: frozenset[int]) -> list[HealthReport]:
    """Return what nodes measure with their neighbours in this order."""
    told: dict[int, list[PairRate]] = {node: [] for node in order}
    for each in neighbour_rounds(len(order)):
        for one, other in ((order[a], order[b]) for a, b in each):
            rate = 1.0 if slow & {one, other} else 10.0
            told[one].append(PairRate(partner=f"n{other}", bytes_s=rate))
            told[other].append(PairRate(partner=f"n{one}", bytes_s=rate))
    return [
        HealthReport(node=f"n{node}", health=FINE, pairs=tuple(told[node]))
        for node in range(len(order))
    ]


def test_healthy_node_between_two_slow_ones_is_not_blamed() -> None:
    """The second measurement has other pairs."""
    slow = frozenset({2, 4})
    first = pairs_of(tuple(range(8)), slow)
    assert "n3" in blamed(first, PreflightLevel.medium)
    both = faster_pairs(first, pairs_of(other_order(8), slow))
    assert sorted(blamed(both, PreflightLevel.medium)) == ["n2", "n4"]


@given(st.integers(5, 40), st.data())
def test_two_slow_nodes_are_named_and_no_other(count: int, data: st.DataObject) -> None:
    """Wherever they are: each node has four partners in both measurements."""
    slow = frozenset(data.draw(st.permutations(range(count)))[:2])
    first = pairs_of(tuple(range(count)), slow)
    assert is_uneven(first)
    both = faster_pairs(first, pairs_of(other_order(count), slow))
    assert set(blamed(both, PreflightLevel.medium)) == {f"n{node}" for node in slow}


@given(st.integers(5, 60))
def test_other_order_has_other_neighbours(count: int) -> None:
    """Of five nodes or more; six are the fewest of an even number."""
    order = other_order(count)
    assert sorted(order) == list(range(count))
    ring = zip(order, (*order[1:], order[0]), strict=True)
    apart = [min((a - b) % count, (b - a) % count) for a, b in ring]
    assert min(apart) > 1


def test_devices_that_all_report_nothing_are_no_error() -> None:
    """A rate of 0 everywhere has no share of itself."""
    dead = replace(FINE, speeds=(replace(SPEED, matmul_flops=0.0),))
    reports = [HealthReport(node=f"n{n}", health=dead) for n in range(4)]
    assert blamed(reports, PreflightLevel.medium) == {}


@dataclass(frozen=True, slots=True)
class Stub:
    """An agent: its node, and the number of that."""

    node: str
    node_rank: int


@dataclass(slots=True)
class StubAgents:
    """Agents that answer at once; at `medium` the first one's device computes other results."""

    standing: list[Stub]
    answers: list[tuple[int, messages.Message]] = field(default_factory=list)
    mended: bool = False
    settings: LaunchConfig = field(
        default=replace(SETTINGS, preflight=Preflight(level=PreflightLevel.medium))
    )

    async def send(self, rank: int, order: messages.Message) -> None:
        """Answer an order to inspect."""
        if not isinstance(order, messages.Inspect):
            return
        wrong = rank == 0 and not self.mended
        speeds = (replace(SPEED, checksum="b" if wrong else "a"),)
        health = replace(FINE, speeds=speeds if order.level is PreflightLevel.medium else ())
        answer = messages.Inspected(
            inspection=order.inspection, began_at=now(), took_s=0.0, health=health
        )
        self.answers.append((rank, answer))

    async def heard(
        self, _: float, __: asyncio.Event
    ) -> AsyncIterator[tuple[int, messages.Message]]:
        """Yield the answers."""
        while self.answers:
            yield self.answers.pop(0)


def test_node_that_computes_wrong_results_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash has all nodes inspected `fast`, which computes nothing; nor does it alone suffice."""

    async def unmeasured(_: object, __: object, reports: object, ___: float) -> object:
        return reports

    monkeypatch.setattr(node_inspections.NodeInspections, "_measure", unmeasured)
    agents = StubAgents([Stub(f"n{n}", n) for n in range(4)])
    seen: list[Event] = []
    inspections = node_inspections.NodeInspections(
        agents=agents,  # type: ignore[arg-type]
        noticed=asyncio.Event(),
        record=seen.append,
    )
    crash = Failure(cause=Cause.crash, message="x", node="n2", signature="x")

    async def go() -> list[set[str]]:
        known = []
        await inspections.inspect_new()
        known.append(set(inspections.unhealthy))
        await inspections.inspect_suspects(crash)
        known.append(set(inspections.unhealthy))
        agents.mended = True
        agents.standing[0] = Stub("n0", 0)
        await inspections.inspect_new()
        known.append(set(inspections.unhealthy))
        agents.standing[:] = [Stub(f"n{n}", n) for n in range(4)]
        await inspections.inspect_new()
        known.append(set(inspections.unhealthy))
        return known

    # Alone it is compared with nobody; among the others it is well again.
    assert asyncio.run(go()) == [{"n0"}, {"n0"}, {"n0"}, set()]
