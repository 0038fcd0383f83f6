"""Preflight blames no healthy node, however few or many others show something else."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from planning.preflight.healthy_nodes import FINE, SETTINGS, SPEED

from hpckit.model.environment.health import HealthReport, NodeHealth
from hpckit.model.settings import PreflightLevel
from hpckit.planning.preflight.judge import judge_node_health, list_node_requirements, list_unhealthy_nodes


def blamed(reports: list[HealthReport], level: PreflightLevel = PreflightLevel.fast) -> dict[str, str]:
    """Return the nodes that a run avoids after an inspection with these answers."""
    return list_unhealthy_nodes(judge_node_health(reports, level, list_node_requirements(SETTINGS), SETTINGS))


@pytest.mark.parametrize("count", [4, 6])
def test_half_of_the_clocks_blame_nobody(count: int) -> None:
    """What half of them shows is not what most do: a warning for each."""
    reports = [
        HealthReport(node=f"n{n}", health=FINE, ahead_least_s=100.0 * (n % 2), ahead_most_s=100.0 * (n % 2))
        for n in range(count)
    ]
    assert blamed(reports) == {}
    found = judge_node_health(reports, PreflightLevel.fast, list_node_requirements(SETTINGS), SETTINGS)
    words = {each.message for one in found for each in one.findings if each.check == "clock"}
    assert "the clock of n1 is 100 s ahead of that of another node" in words
    assert "the clock of n0 is 100 s behind that of another node" in words


def test_two_of_seven_are_not_most_nodes() -> None:
    """A version that only two share is no measure for the other five."""

    def with_torch(version: str) -> NodeHealth:
        facts = FINE.environment
        return replace(FINE, environment=replace(facts, torch=replace(facts.torch, version=version)))

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


def test_devices_that_all_report_nothing_are_no_error() -> None:
    """A rate of 0 everywhere has no share of itself."""
    dead = replace(FINE, speeds=(replace(SPEED, matmul_flops=0.0),))
    reports = [HealthReport(node=f"n{n}", health=dead) for n in range(4)]
    assert blamed(reports, PreflightLevel.medium) == {}
