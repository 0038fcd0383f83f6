"""Properties of the search for a slow node or link, on networks whose fault is known."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpckit.features.interconnect.model import NodeGroupTime, SearchMode, SlowLink, SlowParts
from hpckit.features.interconnect.search import (
    estimate_slowness_threshold,
    find_slow_nodes_and_links,
    list_round_robin_rounds,
    start_slow_node_search,
)
from hpckit.planning.preflight.peers import Group, group_pairs_into_rounds

Seconds = Callable[[Group], float]


def exchange(slow_node: int | None, slow_link: Group | None, factor: float) -> Seconds:
    """Return what a group takes: its slowest node sends to all others, or its slowest link."""

    def seconds(group: Group) -> float:
        nodes = [(len(group) - 1) * (factor if node == slow_node else 1.0) for node in group]
        links = [factor for pair in itertools.combinations(group, 2) if pair == slow_link]
        return max(*nodes, *links)

    return seconds


def searched(nodes: int, mode: SearchMode, seconds: Seconds) -> tuple[SlowParts, int]:
    """Return what a search finds, and after how many rounds."""
    search, rounds = start_slow_node_search(nodes, mode), 0
    try:
        groups = next(search)
        while True:
            rounds += 1
            members = [node for group in groups for node in group]
            assert len(members) == len(set(members))
            assert all(len(group) > 1 for group in groups)
            groups = search.send([NodeGroupTime(nodes=group, seconds=seconds(group)) for group in groups])
    except StopIteration as end:
        found: SlowParts = end.value
        return found, rounds


@pytest.mark.parametrize("mode", [SearchMode.pairs, SearchMode.bisect])
@given(data=st.data(), nodes=st.integers(3, 64))
@settings(max_examples=25)
def test_search_finds_any_one_slow_node(mode: SearchMode, data: st.DataObject, nodes: int) -> None:
    """And names it alone."""
    bad = data.draw(st.integers(0, nodes - 1))
    found, _ = searched(nodes, mode, exchange(bad, None, 3.0))
    assert (found.nodes, found.links) == ((bad,), ())
    assert math.isclose(found.factor, 3.0)


def exchange_of(slow: frozenset[int]) -> Seconds:
    """Return what a group takes if these nodes are four times slower than the others."""
    return lambda group: (len(group) - 1) * (4.0 if slow.intersection(group) else 1.0)


@given(
    slow=st.frozensets(st.integers(0, 999), min_size=1, max_size=6),
    nodes=st.sampled_from([31, 64, 65, 80, 127, 128, 300, 1000]),
)
@settings(max_examples=60)
@example(slow=frozenset({0, 1}), nodes=31)
@example(slow=frozenset({0, 999}), nodes=1000)
@example(slow=frozenset({21, 56, 62}), nodes=80)
def test_halves_find_any_few_slow_nodes(slow: frozenset[int], nodes: int) -> None:
    """Next to each other, in one half or in both; in few rounds."""
    bad = frozenset(node % nodes for node in slow)
    found, rounds = searched(nodes, SearchMode.bisect, exchange_of(bad))
    assert (found.nodes, found.links) == (tuple(sorted(bad)), ())
    assert rounds <= 200


@pytest.mark.parametrize("mode", [SearchMode.pairs, SearchMode.bisect])
@given(data=st.data(), nodes=st.integers(3, 64))
@settings(max_examples=25)
def test_search_finds_any_one_slow_link(mode: SearchMode, data: st.DataObject, nodes: int) -> None:
    """Pairs whatever its speed; halves if it takes longer than all else that a group exchanges."""
    one, other = sorted(data.draw(st.permutations(range(nodes)))[:2])
    factor = 3.0 if mode is SearchMode.pairs else 3.0 * nodes
    found, _ = searched(nodes, mode, exchange(None, (one, other), factor))
    assert (found.nodes, found.links) == ((), (SlowLink(first=one, second=other),))


@pytest.mark.parametrize("mode", [SearchMode.pairs, SearchMode.bisect])
@given(chance=st.randoms(use_true_random=False), nodes=st.integers(2, 64))
@settings(max_examples=15)
def test_search_names_none_where_all_are_alike(mode: SearchMode, chance: random.Random, nodes: int) -> None:
    """Within a noise of a tenth, and although some pairs are disturbed once."""
    alike = exchange(None, None, 1.0)

    def noisy(group: Group) -> float:
        return alike(group) * chance.uniform(0.9, 1.1)

    found, _ = searched(nodes, mode, noisy)
    assert (found.nodes, found.links) == ((), ())


def test_search_believes_no_pair_that_is_slow_once() -> None:
    """What is slow once was disturbed; it is measured again."""
    seen: set[Group] = set()

    def seconds(group: Group) -> float:
        first = group not in seen
        seen.add(group)
        return 5.0 if first and group == (0, 1) else 1.0

    found, rounds = searched(6, SearchMode.pairs, seconds)
    assert (found.nodes, found.links) == ((), ())
    assert rounds == 6


@pytest.mark.parametrize("nodes", [16, 64, 512])
def test_search_by_halves_takes_few_rounds(nodes: int) -> None:
    """Their number grows with the logarithm of that of the nodes."""
    most = 4 * math.log2(nodes) + 20
    for fault in (exchange(nodes - 1, None, 3.0), exchange(None, (0, nodes - 1), 3.0 * nodes)):
        _, rounds = searched(nodes, SearchMode.bisect, fault)
        assert rounds <= most


def test_two_slow_nodes_and_a_slow_link_are_told_apart() -> None:
    """Of ten nodes two are slow, and of the others one link is."""
    slow = {1, 7}
    pairs = itertools.combinations(range(10), 2)
    times: dict[Group, float] = {pair: 4.0 if slow & set(pair) or pair == (2, 5) else 1.0 for pair in pairs}
    found = find_slow_nodes_and_links(times)
    assert found.nodes == (1, 7)
    assert found.links == (SlowLink(first=2, second=5),)


def test_two_nodes_are_never_told_apart() -> None:
    """One pair alone says neither which node is slow nor whether it is."""
    assert find_slow_nodes_and_links({(0, 1): 9.0}).nodes == ()
    assert find_slow_nodes_and_links({}) == SlowParts()


@given(st.integers(2, 33))
def test_in_a_tournament_every_node_meets_every_other_once(nodes: int) -> None:
    """In as few rounds as there can be."""
    rounds = list_round_robin_rounds(range(nodes))
    assert len(rounds) == nodes - 1 + nodes % 2
    assert sorted(pair for one in rounds for pair in one) == list(itertools.combinations(range(nodes), 2))
    assert (
        sum(map(len, group_pairs_into_rounds([pair for one in rounds for pair in one])))
        == nodes * (nodes - 1) // 2
    )


def test_a_noisy_network_needs_more_to_be_slow() -> None:
    """Where repeats differ by half, a pair that takes twice as long is none; else it is."""
    quiet = [NodeGroupTime(nodes=(0, 1), seconds=1.0, spread=0.02)]
    noisy = [NodeGroupTime(nodes=(0, 1), seconds=1.0, spread=0.5)]
    times: dict[Group, float] = {(0, 1): 1.0, (0, 2): 1.0, (1, 2): 2.0}
    assert find_slow_nodes_and_links(times, estimate_slowness_threshold(quiet)).links == (
        SlowLink(first=1, second=2),
    )
    assert find_slow_nodes_and_links(times, estimate_slowness_threshold(noisy)).links == ()
