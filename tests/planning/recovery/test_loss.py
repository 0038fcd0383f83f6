"""A lost node is told from a rank that failed by itself."""

import math
from datetime import UTC, datetime

import pytest

from hpckit.model.failure import Cause, RankExit
from hpckit.planning.recovery.loss import (
    NodeSilence,
    build_loss_before_start_failure,
    build_missing_agents_failure,
    build_node_loss_failure,
)

OWN = RankExit(rank=0, node="n1", code=1, exception="ValueError", at=datetime.now(UTC))
FELT = RankExit(
    rank=0,
    node="n1",
    code=1,
    exception="RuntimeError",
    message="[gloo] Connection closed by peer",
    at=datetime.now(UTC),
)
KILLED = RankExit(rank=0, node="n1", code=None, signal="SIGKILL", at=datetime.now(UTC))

THOUSAND = tuple(f"n{number:04d}" for number in range(1000))


def absence(lost: dict[int, float], failed_at: float = 10.0) -> NodeSilence:
    """Return a round of two nodes with two ranks each, of which the second node is silent."""
    return NodeSilence(nodes=("n1", "n2"), tasks_per_node=2, silent=(2, 3), lost=lost, failed_at=failed_at)


@pytest.mark.parametrize(
    ("exits", "lost", "node"),
    [
        ((), {1: 9.0}, "n2"),
        ((), {}, "n2"),
        ((FELT,), {1: 9.0}, "n2"),
        ((FELT,), {1: 11.0}, "n2"),
        ((FELT,), {}, "n2"),
        ((KILLED,), {1: 11.0}, "n2"),
        ((OWN,), {1: 9.0}, "n2"),
        ((OWN,), {1: 11.0}, None),
        ((OWN,), {}, None),
    ],
)
def test_loss_is_no_excuse_for_a_rank_that_failed_while_the_node_still_spoke(
    exits: tuple[RankExit, ...], lost: dict[int, float], node: str | None
) -> None:
    """The exception wins over silence; a loss wins over what ranks die of because of it."""
    found = build_node_loss_failure(absence(lost), exits)
    assert (None if found is None else found.node) == node


def test_loss_needs_a_silent_rank() -> None:
    """Where every rank has said how it ended, no node is to blame for the round's end."""
    whole = NodeSilence(nodes=("n1",), tasks_per_node=1, silent=(), lost={0: 9.0}, failed_at=math.inf)
    assert build_node_loss_failure(whole, (FELT,)) is None


def test_loss_names_thousands_of_ranks_in_one_line() -> None:
    """Nodes and ranks are named as ranges."""
    lost = dict.fromkeys(range(10, 500), 1.0)
    many = NodeSilence(nodes=THOUSAND, tasks_per_node=8, silent=range(80, 4000), lost=lost)
    found = build_node_loss_failure(many, ())
    assert found is not None
    assert found.cause is Cause.node_lost
    assert found.message == "lost the agent of n[0010-0499] (rank 80-3999)"


def test_loss_blames_no_node_whose_agent_still_speaks() -> None:
    """One agent is lost, and what others say of their ranks was not heard in time."""
    found = build_node_loss_failure(
        NodeSilence(nodes=THOUSAND, tasks_per_node=8, silent=range(80, 8000), lost={10: 1.0}), ()
    )
    assert found is not None
    assert (found.node, found.message) == ("n0010", "lost the agent of n0010 (rank 80-87)")


@pytest.mark.parametrize(
    ("nodes", "lost", "blamed"),
    [
        (1000, 999, 0),
        (1000, 501, 0),
        (1000, 500, 500),
        (9, 8, 0),
        (9, 5, 0),
        (8, 4, 4),
        (7, 6, 6),
        (4, 3, 3),
        (2, 1, 1),
    ],
)
def test_loss_of_most_nodes_at_once_blames_none(nodes: int, lost: int, blamed: int) -> None:
    """What is broken is what they share, such as the network: healthy nodes are not left out."""
    places = dict.fromkeys(range(nodes - lost, nodes), 1.0)
    silent = range(8 * (nodes - lost), 8 * nodes)
    found = build_node_loss_failure(
        NodeSilence(nodes=THOUSAND[:nodes], tasks_per_node=8, silent=silent, lost=places), ()
    )
    assert found is not None
    assert found.cause is Cause.node_lost
    assert len(found.node.split(", ") if found.node else ()) == blamed
    assert ("lost for a shared cause" in found.message) == (blamed == 0)


@pytest.mark.parametrize(
    ("names", "came", "told", "blamed"),
    [
        (("n1", "n2", "n3"), ("n1", "n3"), False, "n2"),
        (("n1", "n2", "n3"), ("n1",), False, "n2, n3"),
        (("n1", "n2", "n3"), (), False, None),
        (("n1", "n2", "n3"), ("n1", "n3"), True, None),
        (("n1",), (), False, "n1"),
        ((), (), False, None),
    ],
)
def test_missing_agents_of_all_nodes_blame_none(
    *, names: tuple[str, ...], came: tuple[str, ...], told: bool, blamed: str | None
) -> None:
    """What several nodes cannot do together is broken for all; a later attempt may have them."""
    wanted = max(len(names), 1)
    failure = build_missing_agents_failure(names, came, wanted=wanted, why="waited 9 s", told=told)
    assert (failure.cause, failure.node) == (Cause.agents_missing, blamed)
    assert failure.message.startswith(f"waited 9 s: {len(came)} of {wanted} nodes reported")


@pytest.mark.parametrize(("nodes", "gone"), [(1000, 999), (1000, 501), (8, 5)])
def test_most_nodes_that_are_late_or_gone_at_once_are_not_blamed(nodes: int, gone: int) -> None:
    """A slow file system, or a switch: neither left out of new attempts, nor held against them."""
    names = THOUSAND[:nodes]
    here = set(names[gone:])
    late = build_missing_agents_failure(names, here, wanted=nodes, why="waited 600 s")
    before = build_loss_before_start_failure(names, here)
    assert (late.node, before.node) == (None, None)
    assert "they share" in late.message
    assert "a shared cause" in before.message
    half = set(names[nodes // 2 :])
    assert build_missing_agents_failure(names, half, wanted=nodes, why="").node is not None
    assert build_loss_before_start_failure(names, half).node is not None
