"""Promises about slow nodes: a spare takes their place, or the run goes on as it is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.failure import Cause, ExitReason, RankExit
from hpckit.model.launch import Recovery
from hpckit.model.states import RoundAction
from hpckit.planning.recovery.boundary import decide_on_straggler
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import NewRound, RoundView, Stay, build_round_ended_event

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Recovery(restarts={"straggler": 2, "node_lost": 2})
NOTHING = Ledger()
LEFT = tuple(RankExit(rank=rank, node="n", code=75, reason=ExitReason.left, at=NOON) for rank in (0, 1))
WORDS = "rank 1 on n2 takes 40% longer than its peers"


def view(**about: Any) -> RoundView:
    """Return a round on n1 and n2 that has left since n2 is slow; n3 stands by."""
    known: dict[str, Any] = {
        "round": 0,
        "at": NOON,
        "exits": LEFT,
        "step": 7,
        "saved": True,
        "cut_short": True,
        "members": ("n1", "n2"),
        "standing": ("n1", "n2", "n3"),
        "slow": {"n2": WORDS},
        "wanted": 2,
        "fewest": 2,
        "requeues": True,
    }
    return RoundView(**{**known, **about})


def test_spare_takes_the_place_of_a_slow_node() -> None:
    """The others keep their places, and the reason names rank, node and by how much."""
    for action in (decide_on_straggler(view(), POLICY, NOTHING), decide_after_round(view(), POLICY, NOTHING)):
        assert isinstance(action, NewRound)
        assert action.nodes == ("n1", "n3")
        assert (action.because.cause, action.because.node) == (Cause.straggler, "n2")
        assert WORDS in action.because.message


def test_slow_node_is_not_taken_again_by_a_later_round() -> None:
    """What a spare replaced is left out when the next round needs a node, if another is there."""
    moved = decide_after_round(view(), POLICY, NOTHING)
    assert isinstance(moved, NewRound)
    past = NOTHING.after_round(build_round_ended_event(view(), moved.because, RoundAction.new_round), 1)
    assert past.list_nodes_failing_too_often(POLICY) == {"n2"}


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"standing": ("n1", "n2")}, "no spare node"),
        ({"saved": False}, "nothing has been saved"),
        ({"members": ("n1", "n3")}, "not among the nodes"),
        ({"draining": {"n3": "fan"}}, "no spare node"),
        ({"slow": {"n2": WORDS, "n3": WORDS}}, "no spare node"),
    ],
)
def test_run_stays_where_leaving_gains_nothing(about: dict[str, Any], why: str) -> None:
    """A slow run is better than one that waits in the queue, or that loses steps."""
    action = decide_on_straggler(view(**about), POLICY, NOTHING)
    assert isinstance(action, Stay)
    assert why in action.because


def test_moves_have_a_budget() -> None:
    """A run whose every node seems slow does not move forever."""
    past, moves = NOTHING, 0
    while isinstance(action := decide_on_straggler(view(step=None), POLICY, past), NewRound):
        past = past.after_round(
            build_round_ended_event(view(step=None), action.because, RoundAction.new_round), 1
        )
        moves += 1
        assert moves < 10
    assert moves == 2
    assert "recovery.restarts.straggler is 2" in action.because
    assert isinstance(decide_on_straggler(view(), replace(POLICY, restarts={}), NOTHING), Stay)


NODES = st.sets(st.sampled_from([f"n{place}" for place in range(6)]))


@given(slow=NODES, draining=NODES, standing=NODES, members=NODES)
def test_new_round_never_has_a_slow_or_drained_node(
    slow: set[str], draining: set[str], standing: set[str], members: set[str]
) -> None:
    """Whatever is slow and drained at once: who moves has as many nodes as before, all good."""
    some = view(
        slow=dict.fromkeys(slow, WORDS),
        draining=dict.fromkeys(draining, ""),
        standing=tuple(sorted(standing)),
        members=tuple(sorted(members)),
        wanted=len(members),
    )
    action = decide_on_straggler(some, POLICY, NOTHING)
    if isinstance(action, NewRound):
        assert len(action.nodes) == len(members)
        assert set(action.nodes) <= standing - slow - draining
        assert members & slow
