"""Promises about nodes that launches leave out: never so that a job would not start."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from asked import asking

from hpckit.model.cluster.site import ClusterNode, NodeGroup
from hpckit.model.nodes import IncidentKind, NodeIncident, NodeStanding
from hpckit.operations.avoid_nodes import choose_nodes_to_exclude

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)
BAD = NodeStanding(
    node="n1",
    incidents=(NodeIncident(node="n1", at=NOW, kind=IncidentKind.unhealthy, run="a.0"),),
    weight=1.0,
    avoided_until=NOW,
)


def node(name: str, *features: str, state: str = "idle", **has: Any) -> ClusterNode:
    """Return a node of the default partition."""
    given: dict[str, Any] = {"cpus": 8, "memory_mb": 16000, "gres": {}, **has}
    return ClusterNode(
        name=name,
        default=True,
        features=frozenset(features),
        has=NodeGroup(partition="batch", nodes=1, state=state, **given),
    )


def four(*features: str, away: tuple[str, ...] = ()) -> list[ClusterNode]:
    """Return four nodes, of which n1 and n2 have these features."""
    return [
        node(
            f"n{place}", *(features if place < 3 else ()), state="drained" if f"n{place}" in away else "mixed"
        )
        for place in range(1, 5)
    ]


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        ({"nodes": 3}, four()),
        ({"nodes": 2, "partition": "batch,other"}, four()),
        ({"nodes": 2, "exclude": "n4"}, [*four(), node("n5")]),
        ({"additional_parameters": (("comment", "mine"),)}, four()),
    ],
)
def test_bad_node_is_left_out_where_others_suffice(asked: dict[str, Any], nodes: list[ClusterNode]) -> None:
    """One of four or more."""
    assert choose_nodes_to_exclude(asking(**asked), [BAD], nodes, {}) == ("n1",)


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        ({"nodes": 4}, four()),
        ({"nodes": 3, "exclude": "n4"}, four()),
        ({"nodes": 3}, four(away=("n4",))),
        ({"nodes": 2, "constraint": "h100"}, four("h100")),
        ({"nodes": 2, "constraint": "[h100|a100]"}, four("h100")),
        ({"nodes": 2, "gres": "gpu:2"}, [node("n1", gres={"gpu": 2}), *four()[1:]]),
        ({"nodes": 4, "mem_gb": 100.0}, four()),
        ({"partition": "other"}, four()),
        *(
            ({key: value}, four())
            for key, value in (("nodelist", "n1"), ("nodelist", "n2"), ("reservation", "ours"))
        ),
        *(
            ({"additional_parameters": ((name, "n4"),)}, four())
            for name in ("nodelist", "exclude", "w", "x", "nodefile", "F", "reservation")
        ),
        ({"nodes": 2, "additional_parameters": (("C", "h100"),)}, four("h100")),
        ({"additional_parameters": (("p", "other"),)}, four()),
    ],
)
def test_job_that_might_not_start_without_the_node_takes_it(
    asked: dict[str, Any], nodes: list[ClusterNode]
) -> None:
    """Its own choice of nodes counts, whatever its spelling, and only nodes that it could get."""
    assert choose_nodes_to_exclude(asking(**asked), [BAD], nodes, {}) == ()


@pytest.mark.parametrize(
    "environ", [{"SBATCH_RESERVATION": "ours"}, {"SBATCH_PARTITION": "other"}, {"SBATCH_CONSTRAINT": "h100"}]
)
def test_defaults_of_the_user_count(environ: dict[str, str]) -> None:
    """Sbatch takes them from the environment."""
    asked = asking(nodes=2)
    assert choose_nodes_to_exclude(asked, [BAD], four("h100"), {}) == ("n1",)
    assert choose_nodes_to_exclude(asked, [BAD], four("h100"), environ) == ()
