"""Promises about drained nodes: who moves, who leaves, who stays, and what else has precedence."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hpckit.model.failure import Cause, ExitReason, Failure, RankExit
from hpckit.model.launch import DrainPolicy, Recovery
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.recovery.boundary import decide_on_drain
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.node_choice import choose_nodes_in_whole_replicas
from hpckit.planning.recovery.round_view import (
    EndAttempt,
    NewRound,
    RoundView,
    Stay,
    StopNotice,
    build_round_ended_event,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MOVE = Recovery(restarts={"drained": 1, "signal": 1, "node_lost": 1}, requeue=True)
LEAVE = replace(MOVE, on_drain=DrainPolicy.leave)
NOTHING = Ledger()
LEFT = tuple(RankExit(rank=rank, node="n", code=75, reason=ExitReason.left, at=NOON) for rank in (0, 1))


def view(**about: Any) -> RoundView:
    """Return a round on n1 and n2 that has left since n2 is drained; n3 stands by."""
    known: dict[str, Any] = {
        "round": 0,
        "at": NOON,
        "exits": LEFT,
        "step": 7,
        "saved": True,
        "cut_short": True,
        "members": ("n1", "n2"),
        "standing": ("n1", "n2", "n3"),
        "draining": {"n2": "fan 3"},
        "wanted": 2,
        "fewest": 2,
        "requeues": True,
    }
    return RoundView(**{**known, **about})


ALONE = view(standing=("n1", "n2"))


@pytest.mark.parametrize("policy", [MOVE, LEAVE])
def test_drain_moves_the_run_to_a_spare(policy: Recovery) -> None:
    """The others keep their places, there is no pause, and the reason is told."""
    action = decide_after_round(view(), policy, NOTHING)
    assert isinstance(action, NewRound)
    assert (action.nodes, action.pause) == (("n1", "n3"), timedelta())
    assert action.because.cause is Cause.drained
    assert (action.because.node, action.because.message) == ("n2", "n2 is being drained (fan 3)")


def test_drain_without_a_spare_is_only_left_where_that_is_wanted() -> None:
    """`move` stays, as Slurm lets it; `leave` asks for a new attempt."""
    assert decide_on_drain(ALONE, MOVE, NOTHING) == Stay(because="no spare node can take over")
    action = decide_on_drain(ALONE, LEAVE, NOTHING)
    assert isinstance(action, EndAttempt)
    assert (action.state, action.again, action.excluded) == (RunState.interrupted, True, ())
    assert action == decide_after_round(ALONE, LEAVE, NOTHING)


def test_drain_is_no_reason_to_shrink() -> None:
    """Fewer nodes, with resources.min_nodes, would cost more than to stay."""
    assert isinstance(decide_on_drain(replace(ALONE, fewest=1), MOVE, NOTHING), Stay)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (view(saved=False), "nothing has been saved yet"),
        (view(draining={}), "none of its nodes is being drained now"),
        (view(draining={"n3": ""}), "none of its nodes is being drained now"),
        (view(draining={"n2": "", "n3": ""}), "no spare node can take over"),
    ],
)
def test_drain_is_stayed_through_where_leaving_gains_nothing(known: RoundView, why: str) -> None:
    """Unsaved work is not thrown away, and a drained spare is no place to go."""
    stay = decide_on_drain(known, MOVE, NOTHING)
    assert isinstance(stay, Stay)
    assert why in stay.because


def test_drain_is_left_within_its_budget_only() -> None:
    """Without progress in between, as often as recovery.restarts.drained says; spares cost none."""
    because = Failure(cause=Cause.drained, message="", signature="drained")
    past = NOTHING.after_round(build_round_ended_event(view(), because, RoundAction.new_attempt), 1)
    stay = decide_on_drain(ALONE, LEAVE, past)
    assert isinstance(stay, Stay)
    assert "recovery.restarts.drained is 1" in stay.because
    assert isinstance(decide_on_drain(view(), MOVE, past), NewRound)
    assert isinstance(decide_on_drain(replace(ALONE, requeues=False), LEAVE, NOTHING), Stay)
    assert isinstance(decide_on_drain(ALONE, replace(LEAVE, restarts={}), NOTHING), Stay)


def test_drain_yields_to_a_notice_and_to_a_failure() -> None:
    """An attempt that will be stopped ends; a rank that failed is blamed, by its own budget."""
    told = decide_after_round(view(notice=StopNotice(signal="SIGTERM", cause=Cause.preempted)), MOVE, NOTHING)
    assert isinstance(told, EndAttempt)
    assert told.failure is not None
    assert told.failure.cause is Cause.preempted
    killed = RankExit(rank=1, node="n1", code=None, signal="SIGKILL", at=NOON)
    failed = decide_after_round(view(exits=(killed,)), MOVE, NOTHING)
    assert isinstance(failed, NewRound)
    assert failed.because.cause is Cause.signal
    assert failed.nodes == ("n1", "n3"), "away from the drained node, as it starts anew anyway"


def test_drain_that_is_over_when_the_ranks_have_left_starts_them_again() -> None:
    """Whether the drain was taken back or the spare is gone: ranks that left are started again."""
    for changed in (view(draining={}), replace(ALONE, draining={"n2": ""})):
        action = decide_after_round(changed, MOVE, NOTHING)
        assert isinstance(action, NewRound)
        assert action.nodes == ("n1", "n2")


def test_drain_counts_against_no_failure() -> None:
    """Neither as the same failure again, nor for how often the run fails."""
    past = NOTHING
    for _ in range(5):
        action = decide_after_round(view(step=1), MOVE, past)
        assert isinstance(action, NewRound)
        past = past.after_round(
            build_round_ended_event(view(step=1), action.because, RoundAction.new_round), 1
        )
    assert past.mean_time_between_failures(timedelta(hours=1)) == timedelta(hours=1)
    assert not past.list_nodes_failing_too_often(MOVE)


def test_placed_takes_unwelcome_nodes_last() -> None:
    """Drained nodes serve only where there are too few others; members are kept before spares."""
    assert choose_nodes_in_whole_replicas(("n1", "n2"), ("n1", "n3", "n4"), 2, {"n3"}) == ("n1", "n4")
    assert choose_nodes_in_whole_replicas(("n1", "n2"), ("n1", "n3"), 2, {"n3"}) == ("n1", "n3")
    assert choose_nodes_in_whole_replicas(("n1", "n2"), ("n1", "n2", "n3"), 2, {"n1", "n3"}) == ("n1", "n2")
