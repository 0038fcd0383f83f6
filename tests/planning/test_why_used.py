"""Promises about what `nodes` says of launches: left out is what they leave out, and why not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.cluster.site import ClusterNode, NodeGroup
from hpckit.model.nodes import NodeStanding
from hpckit.planning.nodes import choose_nodes_to_avoid, explain_use_of_bad_nodes

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)


def bad(*names: str) -> list[NodeStanding]:
    """Return nodes with incidents, the worst first."""
    return [
        NodeStanding(node=name, incidents=(), weight=1.0, avoided_until=NOW + timedelta(days=1))
        for name in names
    ]


def nodes(count: int, partition: str = "batch", down: tuple[str, ...] = ()) -> list[ClusterNode]:
    """Return nodes of a partition."""
    return [
        ClusterNode(
            name=name,
            has=NodeGroup(
                partition=partition,
                nodes=1,
                cpus=1,
                memory_mb=1,
                gres={},
                state="down" if name in down else "idle",
            ),
        )
        for name in (f"n{place}" for place in range(count))
    ]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (nodes(30), ["", "", ""]),
        (nodes(4), ["", "launches leave out 1 of 4 in batch at most", "Slurm knows no such node"]),
        (
            nodes(20, down=("n0",)),
            ["it is down, drained or reserved", "", "launches leave out 1 of 19 in batch at most"],
        ),
        ([*nodes(3), *nodes(40, "all")], ["", "", ""]),
        ([], ["Slurm knows no such node"] * 3),
    ],
)
def test_nodes_that_launches_use_have_a_reason(there: list[ClusterNode], said: list[str]) -> None:
    """The limit, its state, or its name; nothing of those that are left out."""
    assert list(explain_use_of_bad_nodes(bad("n0", "n1", "n9"), there).values()) == said


@given(st.integers(0, 60), st.lists(st.integers(0, 60), unique=True))
def test_what_is_said_is_what_launches_do(count: int, places: list[int]) -> None:
    """Left out are the nodes that a launch of one node leaves out, no other ones."""
    some = bad(*(f"n{place}" for place in places))
    out = {one.node for one in choose_nodes_to_avoid(some, {f"n{place}" for place in range(count)}, ())}
    assert {node for node, why in explain_use_of_bad_nodes(some, nodes(count)).items() if not why} == out
