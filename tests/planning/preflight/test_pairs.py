"""Promises of planning.preflight.pairs: nodes add with both neighbours, and slow ones are named."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.preflight.health import HealthReport, PairRate
from hpckit.model.preflight.verdict import HealthVerdict
from hpckit.planning.preflight.pairs import faster_pairs, neighbour_rounds, pair_findings


@given(st.integers(3, 300))
def test_each_node_meets_two_others_and_none_twice_in_a_round(count: int) -> None:
    """Two rounds suffice for an even number of nodes, three for an odd one."""
    rounds = neighbour_rounds(count)
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
    assert neighbour_rounds(count) == ()


def measured(count: int, slow: dict[int, float], broken: frozenset[int]) -> list[HealthReport]:
    """Return what nodes report if a pair is as fast as its slower node; broken ones reach none."""
    reports: dict[int, list[PairRate]] = {node: [] for node in range(count)}
    for each in neighbour_rounds(count):
        for one, other in each:
            lost = bool({one, other} & broken)
            rate = None if lost else 1e9 * min(slow.get(one, 1.0), slow.get(other, 1.0))
            for node, partner in ((one, other), (other, one)):
                told = PairRate(partner=f"n{partner}", bytes_s=rate, problem="timed out" * lost)
                reports[node].append(told)
    return [HealthReport(node=f"n{node}", pairs=tuple(each)) for node, each in reports.items()]


def found(reports: list[HealthReport]) -> dict[str, HealthVerdict]:
    """Return the verdict on each node that something was found of."""
    return {node: finding.verdict for node, finding in pair_findings(reports)}


@given(st.integers(4, 40), st.data())
def test_slow_node_is_named_and_neither_of_its_neighbours(count: int, data: st.DataObject) -> None:
    """A healthy node has another neighbour, with which it is as fast as ever."""
    bad = data.draw(st.integers(0, count - 1))
    share = data.draw(st.floats(0.01, 1.0))
    verdict = found(measured(count, {bad: share}, frozenset())).pop(f"n{bad}", HealthVerdict.ok)
    assert found(measured(count, {bad: share}, frozenset())).keys() <= {f"n{bad}"}
    assert verdict == (
        HealthVerdict.crit
        if share < 0.5
        else HealthVerdict.warn
        if share < 0.67
        else HealthVerdict.ok
    )


@given(st.integers(3, 40), st.data())
def test_node_that_reaches_nobody_is_named_alone(count: int, data: st.DataObject) -> None:
    """Its neighbours reach their other ones."""
    bad = data.draw(st.integers(0, count - 1))
    reports = measured(count, {}, frozenset({bad}))
    assert found(reports) == {f"n{bad}": HealthVerdict.crit}
    ((_, finding),) = pair_findings(reports)
    assert f"n{bad} could not exchange data with " in finding.message
    assert "timed out" in finding.message


def test_disturbance_that_is_over_blames_nobody() -> None:
    """The better of two measurements counts; one that failed, or is missing, takes nothing away."""
    disturbed, quiet = measured(6, {2: 0.1}, frozenset()), measured(6, {}, frozenset())
    assert found(disturbed)
    for again in (quiet, quiet[1:]):
        assert found(faster_pairs(disturbed, again)) == {}
    for lost in (measured(6, {}, frozenset(range(6))), [], quiet[:0]):
        assert faster_pairs(quiet, lost) == quiet


def test_nothing_follows_where_nobody_could_add() -> None:
    """As where a firewall is, or the store's node is down: no node is to blame."""
    assert found(measured(6, {}, frozenset(range(6)))) == {}
    assert found([HealthReport(node=f"n{node}") for node in range(6)]) == {}
