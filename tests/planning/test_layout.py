"""Promises of hpckit.planning.layout: each rank has one place; what cannot hold is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import ConfigError
from hpckit.model.launch import LaunchConfig, Resources
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.settings import BatchRule, Parallel, Precision, Recompute, Reduction
from hpckit.model.parallel.share import compute_batch_share
from hpckit.planning.layout import (
    NodeShape,
    cache_by_settings,
    count_nodes_per_replica,
    describe_layouts,
    plan_layout,
)

SIZES = st.sampled_from([1, 2, 3])
LAYOUTS = st.builds(Layout, replicate=SIZES, pipeline=SIZES, shard=SIZES, context=SIZES, tensor=SIZES)


@given(layout=LAYOUTS)
def test_every_rank_has_its_own_place_and_replicas_are_outermost(layout: Layout) -> None:
    """Every rank has its own place and replicas are outermost."""
    product = itertools.product(*(range(size) for size in layout.sizes.values()))
    for rank, place in enumerate(product):
        at = dict(zip(MeshAxis, place, strict=True))
        assert layout.coordinates(rank) == at
        assert layout.rank_at(at) == rank
        assert rank // layout.replica_size == at[MeshAxis.replicate]


@given(layout=LAYOUTS)
def test_data_ranks_share_the_batch_among_those_that_differ_in_data(layout: Layout) -> None:
    """Data ranks share the batch among those that differ in data."""
    for rank in range(layout.world_size):
        same = [one for one in range(layout.world_size) if layout.data_rank(one) == layout.data_rank(rank)]
        assert tuple(same) == layout.peers(rank, MeshAxis.pipeline, MeshAxis.context, MeshAxis.tensor)
    assert {layout.data_rank(one) for one in range(layout.world_size)} == set(range(layout.data_size))


@given(batch=st.integers(1, 60), size=st.integers(1, 12))
def test_shares_cover_the_batch_once(batch: int, size: int) -> None:
    """Shares cover the batch once."""
    if batch < size:
        with pytest.raises(ValueError, match="rows for"):
            compute_batch_share(batch, 0, size)
        return
    shares = [compute_batch_share(batch, rank, size) for rank in range(size)]
    rows = [row for share in shares for row in range(batch)[share.rows]]
    assert rows == list(range(batch))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert sum(share.weight for share in shares) == pytest.approx(1)


@pytest.mark.parametrize(
    ("parallel", "nodes", "tasks", "expected"),
    [
        (Parallel(), 2, 4, Layout(replicate=8)),
        (Parallel(replicate=1, shard="rest"), 2, 4, Layout(shard=8)),
        (Parallel(shard="node"), 2, 4, Layout(replicate=2, shard=4)),
        (Parallel(tensor="node"), 2, 4, Layout(replicate=2, tensor=4)),
        (Parallel(context="node"), 2, 4, Layout(replicate=2, context=4)),
        (Parallel(pipeline="nodes"), 2, 4, Layout(replicate=4, pipeline=2)),
        (Parallel(pipeline="nodes"), 1, 4, Layout(pipeline=4)),
        (Parallel(pipeline="nodes", tensor=2), 1, 4, Layout(pipeline=2, tensor=2)),
        (Parallel(shard="node", tensor=2), 2, 4, Layout(replicate=2, shard=2, tensor=2)),
        (Parallel(replicate=1, shard="rest", tensor=2), 2, 4, Layout(shard=4, tensor=2)),
        (Parallel(pipeline="nodes", shard="node"), 3, 4, Layout(pipeline=3, shard=4)),
        (Parallel(replicate=2, shard=2), 4, 1, Layout(replicate=2, shard=2)),
    ],
)
def test_words_become_numbers(parallel: Parallel, nodes: int, tasks: int, expected: Layout) -> None:
    """Words become numbers."""
    assert plan_layout(parallel, NodeShape(nodes=nodes, tasks_per_node=tasks)) == expected


@pytest.mark.parametrize(
    ("parallel", "nodes", "tasks", "message"),
    [
        (Parallel(replicate=3), 1, 4, "is 3 ranks, and the run has 4 ranks"),
        (Parallel(shard=3), 1, 4, "parallel.shard=3 does not divide the 4 ranks"),
        (Parallel(shard=0), 1, 4, "parallel.shard=0 is not a valid size"),
        (Parallel(tensor="rest"), 1, 4, "parallel.tensor=rest is not a valid size"),
        (Parallel(shard="rest"), 1, 4, "are both rest"),
        (Parallel(tensor=4), 4, 1, "in one node or NVLink domain"),
        (Parallel(shard=3, replicate=4), 4, 3, ""),
        (Parallel(shard=3, replicate=4), 6, 2, "parts of several replicas"),
        (Parallel(pipeline=2, schedule="ZBV"), 1, 4, "parallel.schedule=ZBV is not a known schedule"),
        (Parallel(pipeline=4, microbatches=3), 1, 4, "needs 4 or more"),
        (Parallel(pipeline=2, schedule="Interleaved1F1B", microbatches=3), 1, 2, "needs 4"),
        (Parallel(pipeline=4, microbatches=3, schedule="GPipe"), 1, 4, ""),
        (Parallel(reduce=Reduction.tree), 2, 4, ""),
        (Parallel(reduce=Reduction.tree, microbatches=2), 1, 1, ""),
        (Parallel(reduce=Reduction.tree), 3, 1, "3 replicas x 1 is 3"),
        (Parallel(reduce=Reduction.tree, microbatches=3), 2, 1, "2 replicas x 3 is 6"),
        (Parallel(reduce=Reduction.tree, shard=2), 2, 1, "exact here: the layout is shard 2"),
        (Parallel(reduce=Reduction.tree, params=Precision.bf16), 2, 1, "params is bf16"),
        (Parallel(reduce=Reduction.tree, offload=True), 2, 1, "offload is true"),
        (Parallel(reduce=Reduction.tree, batch=BatchRule.scale), 2, 1, "batch is scale"),
        (Parallel(tensor=2, compile=True, recompute=Recompute.selective), 1, 2, "cut .tensor 2."),
        (Parallel(tensor=2, compile=True, recompute=Recompute.blocks), 1, 2, ""),
        (Parallel(shard=2, compile=True, recompute=Recompute.selective), 1, 2, ""),
        (Parallel(context=2, compile=True, recompute=Recompute.selective), 1, 2, ""),
        (Parallel(context=2, compile=True, recompute=Recompute.blocks), 1, 2, "cut .context 2."),
    ],
)
def test_what_cannot_hold_is_refused(parallel: Parallel, nodes: int, tasks: int, message: str) -> None:
    """What cannot hold is refused."""
    shape = NodeShape(nodes=nodes, tasks_per_node=tasks)
    if not message:
        plan_layout(parallel, shape)
        return
    with pytest.raises(ConfigError, match=message) as caught:
        plan_layout(parallel, shape)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("parallel", "hint"),
    [
        (Parallel(replicate=1, shard=2), "set parallel.replicate=rest"),
        (Parallel(replicate=1, shard=3), "choose sizes whose product divides 4"),
    ],
)
def test_sizes_with_another_product_are_mended_as_can_be(parallel: Parallel, hint: str) -> None:
    """More replicas help only if the others divide the ranks."""
    with pytest.raises(ConfigError) as caught:
        plan_layout(parallel, NodeShape(nodes=1, tasks_per_node=4))
    assert str(caught.value.hint).startswith(hint)


def test_nodes_joined_by_nvlink_may_share_matrices() -> None:
    """Nodes joined by nvlink may share matrices."""
    shape = NodeShape(nodes=4, tasks_per_node=1, domain_nodes=2)
    assert plan_layout(Parallel(tensor=2), shape) == Layout(replicate=2, tensor=2)


def test_a_replica_stands_on_whole_nodes() -> None:
    """A run shrinks by as many nodes at a time."""
    layout = plan_layout(Parallel(shard=4), NodeShape(nodes=4, tasks_per_node=2))
    assert count_nodes_per_replica(layout, 2) == 2


def test_planned_layouts_are_said_unless_all_ranks_are_alike() -> None:
    """`check` and `--dry-run` say what a run shrinks by; of a sweep, which run has which."""
    plain = LaunchConfig(name="x", resources=Resources(nodes=4, tasks_per_node=2), parallel=Parallel())
    pairs = replace(plain, parallel=Parallel(shard=4))
    halves = replace(plain, parallel=Parallel(shard="node"))
    whole = replace(plain, resources=Resources(nodes=1, tasks_per_node=8), parallel=Parallel(shard=4))
    assert describe_layouts([plain, plain]) == ()
    assert describe_layouts([pairs]) == ("replicate 2 x shard 4 (a replica is 2 nodes)",)
    assert describe_layouts([whole]) == ("replicate 2 x shard 4 (a node has 2 replicas)",)
    assert describe_layouts([halves, plain, halves]) == (
        "replicate 4 x shard 2 (a replica is 1 node): runs 0, 2",
    )


def test_runs_that_share_their_settings_are_looked_at_once() -> None:
    """But for params, which no check reads; a run with settings of its own is looked at itself."""
    seen: list[int] = []

    def nodes(settings: LaunchConfig) -> int:
        seen.append(settings.resources.nodes)
        return settings.resources.nodes

    base = LaunchConfig()
    sweep = [replace(base, params={"lr": rate}) for rate in range(3)]
    others = [replace(base, resources=Resources(nodes=number)) for number in (2, 3, 2)]
    asked = cache_by_settings(nodes)
    assert [asked(one) for one in (*sweep, *others)] == [1, 1, 1, 2, 3, 2]
    assert seen == [1, 2, 3, 2]
