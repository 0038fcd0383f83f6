"""Promises of planning.preflight.peers: nodes add with both neighbours, and slow ones are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning.preflight.healthy_nodes import FINE, SETTINGS

from hpckit.model.environment.health import HealthReport, HealthVerdict, PairRate
from hpckit.model.settings import PreflightLevel
from hpckit.planning.preflight.judge import judge_node_health, list_node_requirements, list_unhealthy_nodes
from hpckit.planning.preflight.peers import (
    are_pair_rates_uneven,
    find_nodes_slow_with_neighbours,
    keep_faster_pair_rates,
    plan_neighbour_rounds,
    reorder_with_new_neighbours,
)


@given(st.integers(3, 300))
def test_each_node_meets_two_others_and_none_twice_in_a_round(count: int) -> None:
    """Two rounds suffice for an even number of nodes, three for an odd one."""
    rounds = plan_neighbour_rounds(count)
    assert len(rounds) == 2 + count % 2
    for each in rounds:
        nodes = [node for pair in each for node in pair]
        assert len(nodes) == len(set(nodes))
    pairs = [pair for each in rounds for pair in each]
    assert len(set(pairs)) == len(pairs) == count
    assert set(Counter(node for pair in pairs for node in pair).values()) == {2}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_nodes_have_no_pairs(count: int) -> None:
    """Nothing would follow from what they measured."""
    assert plan_neighbour_rounds(count) == ()


def measured(
    count: int, slow: dict[int, float], broken: frozenset[int] = frozenset(), order: Sequence[int] = ()
) -> list[HealthReport]:
    """Return what nodes report if a pair is as fast as its slower node; broken ones reach none.

    Neighbours are those of an order, which is that of their numbers unless it is given.
    """
    order = order or range(count)
    reports: dict[int, list[PairRate]] = {node: [] for node in range(count)}
    for each in plan_neighbour_rounds(count):
        for one, other in ((order[a], order[b]) for a, b in each):
            lost = bool({one, other} & broken)
            rate = None if lost else 1e9 * min(slow.get(one, 1.0), slow.get(other, 1.0))
            for node, partner in ((one, other), (other, one)):
                told = PairRate(partner=f"n{partner}", bytes_s=rate, problem="timed out" * lost)
                reports[node].append(told)
    return [HealthReport(node=f"n{node}", pairs=tuple(each)) for node, each in reports.items()]


def found(reports: list[HealthReport]) -> dict[str, HealthVerdict]:
    """Return the verdict on each node that something was found of."""
    return {node: finding.verdict for node, finding in find_nodes_slow_with_neighbours(reports)}


@given(st.integers(4, 40), st.data())
def test_slow_node_is_named_and_neither_of_its_neighbours(count: int, data: st.DataObject) -> None:
    """A healthy node has another neighbour, with which it is as fast as ever."""
    bad = data.draw(st.integers(0, count - 1))
    share = data.draw(st.floats(0.01, 1.0))
    verdict = found(measured(count, {bad: share})).pop(f"n{bad}", HealthVerdict.ok)
    assert found(measured(count, {bad: share})).keys() <= {f"n{bad}"}
    assert verdict == (
        HealthVerdict.crit if share < 0.5 else HealthVerdict.warn if share < 0.67 else HealthVerdict.ok
    )


@given(st.integers(3, 40), st.data())
def test_node_that_reaches_nobody_is_named_alone(count: int, data: st.DataObject) -> None:
    """Its neighbours reach their other ones."""
    bad = data.draw(st.integers(0, count - 1))
    reports = measured(count, {}, frozenset({bad}))
    assert found(reports) == {f"n{bad}": HealthVerdict.crit}
    ((_, finding),) = find_nodes_slow_with_neighbours(reports)
    assert f"n{bad} could not exchange data with " in finding.message
    assert "timed out" in finding.message


def test_disturbance_that_is_over_blames_nobody() -> None:
    """The better of two measurements counts; one that failed, or is missing, takes nothing away."""
    disturbed, quiet = measured(6, {2: 0.1}), measured(6, {})
    assert found(disturbed)
    for again in (quiet, quiet[1:]):
        assert found(keep_faster_pair_rates(disturbed, again)) == {}
    for lost in (measured(6, {}, frozenset(range(6))), [], quiet[:0]):
        assert keep_faster_pair_rates(quiet, lost) == quiet


def test_nothing_follows_where_nobody_could_add() -> None:
    """As where a firewall is, or the store's node is down: no node is to blame."""
    assert found(measured(6, {}, frozenset(range(6)))) == {}
    assert found([HealthReport(node=f"n{node}") for node in range(6)]) == {}


def test_healthy_node_between_two_slow_ones_is_not_blamed() -> None:
    """The second measurement has other pairs."""
    slow = {2: 0.1, 4: 0.1}
    first = measured(8, slow)
    assert "n3" in found(first)
    both = keep_faster_pair_rates(first, measured(8, slow, order=reorder_with_new_neighbours(8)))
    reports = [replace(one, health=FINE) for one in both]
    judged = judge_node_health(reports, PreflightLevel.medium, list_node_requirements(SETTINGS), SETTINGS)
    assert list_unhealthy_nodes(judged).keys() == {"n2", "n4"}


@given(st.integers(5, 40), st.data())
def test_two_slow_nodes_are_named_and_no_other(count: int, data: st.DataObject) -> None:
    """Wherever they are: each node has four partners in both measurements."""
    slow = dict.fromkeys(data.draw(st.permutations(range(count)))[:2], 0.1)
    first = measured(count, slow)
    assert are_pair_rates_uneven(first)
    both = keep_faster_pair_rates(first, measured(count, slow, order=reorder_with_new_neighbours(count)))
    assert found(both) == {f"n{node}": HealthVerdict.crit for node in slow}


@given(st.integers(5, 60))
def test_other_order_has_other_neighbours(count: int) -> None:
    """Of five nodes or more; six are the fewest of an even number."""
    order = reorder_with_new_neighbours(count)
    assert sorted(order) == list(range(count))
    ring = zip(order, (*order[1:], order[0]), strict=True)
    apart = [min((a - b) % count, (b - a) % count) for a, b in ring]
    assert min(apart) > 1
