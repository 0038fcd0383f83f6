"""Promises of layouts for runs that lack nodes: which are refused, and which one a round has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import ConfigError
from hpckit.model.launch import LaunchConfig, Resources
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import BatchRule, FallbackLayout, Parallel, Reduction
from hpckit.planning.fallback import (
    check_shrinking_to_min_nodes,
    find_layout_for_ranks,
    list_fallback_node_counts,
)
from hpckit.planning.layout import count_run_replica_nodes, plan_run_layout
from hpckit.planning.recovery.node_choice import RoundSizes
from hpckit.planning.recovery.run_size import build_run_size

FSDP = FallbackLayout(replicate=1, shard="rest")
TENSOR = FallbackLayout(tensor="node")
WHOLE = Parallel(pipeline="nodes")
"""One replica over all nodes: no loss leaves a whole one."""

SIZES = st.sampled_from([1, 2, 3, 4])
FALLBACKS = st.builds(
    FallbackLayout,
    replicate=st.sampled_from(["rest", 1, 2]),
    shard=st.sampled_from([1, 2, 3, "rest", "node"]),
    tensor=st.sampled_from([1, 2, "node"]),
    pipeline=st.sampled_from([1, 2, "nodes"]),
)


def run(
    nodes: int, min_nodes: int | None, *fallback: FallbackLayout, parallel: Parallel = WHOLE, tasks: int = 1
) -> LaunchConfig:
    """Return a run of so many nodes with these layouts to fall back to."""
    resources = Resources(nodes=nodes, min_nodes=min_nodes, tasks_per_node=tasks)
    return LaunchConfig(name="x", resources=resources, parallel=replace(parallel, fallback=list(fallback)))


def test_run_without_a_whole_replica_has_the_first_listed_layout_that_fits() -> None:
    """Its own layout on all nodes, and below that the user's first choice for these nodes."""
    settings = run(4, 2, FallbackLayout(replicate=1, shard=2, pipeline=1), FSDP)
    found = [str(find_layout_for_ranks(settings, nodes)) for nodes in (4, 3, 2)]
    assert found == ["pipeline 4", "shard 3", "shard 2"]
    assert list_fallback_node_counts(settings) == (2, 3)
    settings = run(4, 2, FSDP)
    assert list_fallback_node_counts(settings) == (3, 2)


def test_whole_replicas_come_before_other_layouts() -> None:
    """With one of two replicas left, the layout is the run's own on fewer nodes than stand."""
    settings = run(4, 1, FSDP, parallel=Parallel(pipeline=2))
    sizes = RoundSizes(wanted=4, fewest=1, replica_nodes=2, fallback=list_fallback_node_counts(settings))
    assert [sizes.count_nodes_to_use(nodes) for nodes in (4, 3, 2, 1, 0)] == [4, 2, 2, 1, 0]
    assert str(find_layout_for_ranks(settings, 2)) == "pipeline 2"
    assert str(find_layout_for_ranks(settings, 1)) == "replicate 1"


def test_other_layout_is_taken_where_replicas_would_be_too_few() -> None:
    """Three of four nodes are asked for at least: one replica of two nodes is less than that."""
    settings = run(4, 3, FSDP, parallel=Parallel(pipeline=2))
    sizes = RoundSizes(wanted=4, fewest=3, replica_nodes=2, fallback=list_fallback_node_counts(settings))
    assert sizes.count_nodes_to_use(3) == 3
    assert str(find_layout_for_ranks(settings, 3)) == "shard 3"


@given(
    nodes=SIZES,
    fewest=SIZES,
    tasks=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 3, 4]),
    fallback=st.lists(FALLBACKS, max_size=3),
    standing=st.integers(0, 5),
)
def test_what_is_chosen_has_a_layout_and_all_ranks_find_it(
    nodes: int, fewest: int, tasks: int, pipeline: int, fallback: Sequence[FallbackLayout], standing: int
) -> None:
    """For every run that is accepted: from min_nodes on there is always a round with a layout.

    It is the run's own one if that has a whole replica; never is a node used that does not stand.
    """
    asked = Parallel(pipeline=pipeline, shard="node")
    settings = run(nodes, min(fewest, nodes), *fallback, parallel=asked, tasks=tasks)
    try:
        own = plan_run_layout(settings)
        check_shrinking_to_min_nodes(settings)
    except ConfigError:
        return
    least, whole, size = (min(fewest, nodes), count_run_replica_nodes(settings), build_run_size(settings))
    sizes = RoundSizes(
        wanted=size.count_wanted_nodes(), fewest=least, replica_nodes=whole, fallback=size.fallback_nodes
    )
    chosen = sizes.count_nodes_to_use(standing)
    assert 0 <= chosen <= min(standing, nodes)
    if standing >= least:
        assert chosen >= least
        assert sizes.has_layout_for(chosen)
    if chosen:
        layout = find_layout_for_ranks(settings, chosen * tasks)
        assert layout.world_size == chosen * tasks
        possible = min(standing, nodes) // whole * whole
        if possible and possible >= least:
            assert (chosen, layout.with_replicas(1)) == (possible, own.with_replicas(1))
    good = [f"n{number}" for number in range(standing)]
    assert len(sizes.choose_nodes(good[:nodes], good)) == chosen
    assert {*sizes.choose_nodes(good[1 : 1 + nodes], good)} <= {*good}


def test_spare_node_takes_the_place_in_a_round_of_another_layout() -> None:
    """Members stay; a run that has its nodes again has its own layout, in whole replicas."""
    sizes = RoundSizes(wanted=4, fewest=2, replica_nodes=4, fallback=(3, 2))
    assert sizes.choose_nodes("abcd", "abd") == ("a", "b", "d")
    assert sizes.choose_nodes("abd", "abds") == ("a", "b", "d", "s")
    assert sizes.choose_nodes("abd", "bds") == ("s", "b", "d")
    assert sizes.choose_nodes("abd", "bd") == ("b", "d")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (run(4, 3, TENSOR, FallbackLayout(shard=2)), r"fallback\[1\] does not fit .*min_nodes=3"),
        (run(4, 3, FallbackLayout(replicate=1)), r"fallback\[0\] does not fit"),
        (run(4, 2, FallbackLayout(shard="nodes")), r"fallback\[0\].*parallel.shard=nodes"),
        (run(4, None, FSDP), "min_nodes is null"),
        (run(4, 2, FSDP, parallel=replace(WHOLE, batch=BatchRule.scale)), "batch is scale"),
        (run(4, 2, FSDP, parallel=Parallel(reduce=Reduction.tree)), "tree cannot be exact"),
        (run(4, 2), "takes 4 nodes"),
    ],
    ids=["second", "too_small", "word", "no_min_nodes", "scale", "tree", "none_listed"],
)
def test_layout_that_could_not_be_taken_is_refused_by_name(settings: LaunchConfig, words: str) -> None:
    """Before anything is queued, with the key, the number of nodes and the reason."""
    with pytest.raises(ConfigError, match=words) as refused:
        check_shrinking_to_min_nodes(settings)
    assert refused.value.hint


def test_ranks_that_have_no_layout_are_refused() -> None:
    """Neither whole replicas nor a listed layout: the sizes are named."""
    with pytest.raises(ConfigError, match="3 ranks do not make whole replicas of pipeline 4"):
        find_layout_for_ranks(run(4, 2, FallbackLayout(shard=2)), 3)
    with pytest.raises(ConfigError, match="1 rank"):
        find_layout_for_ranks(run(2, 1, FSDP, tasks=2), 1)


def test_a_run_without_fallback_shrinks_by_whole_replicas() -> None:
    """Fewer replicas of the same layout need no list."""
    settings = run(4, 2, parallel=Parallel(shard=4), tasks=2)
    check_shrinking_to_min_nodes(settings)
    assert find_layout_for_ranks(settings, 4) == Layout(shard=4)
    assert list_fallback_node_counts(settings) == ()
