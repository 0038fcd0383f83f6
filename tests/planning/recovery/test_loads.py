"""Promises about deaths at the load of a checkpoint: they count for it, not for the run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hpckit.model.failure import Cause, ExitReason, Failure, RankExit
from hpckit.model.launch import Recovery
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import (
    CheckpointLoad,
    EndAttempt,
    NewRound,
    RoundView,
    build_round_ended_event,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KILLED = RankExit(rank=0, node="n", code=None, signal="SIGKILL", reason=ExitReason.killed, at=NOON)
LOAD = CheckpointLoad(checkpoint="step-15", others=1)
ROUND = RoundView(
    round=1, at=NOON, exits=(KILLED,), load=LOAD, members=("n",), standing=("n",), requeues=True
)
NEVER = Recovery()
ONCE = Recovery(restarts={"signal": 1}, max_identical_failures=2)


def test_death_at_a_load_is_charged_to_the_checkpoint() -> None:
    """The budget, the identical failures and the node are left as they were."""
    past = Ledger()
    for _ in range(2):
        action = decide_after_round(ROUND, ONCE, past)
        assert isinstance(action, NewRound)
        assert action.because.checkpoint == "step-15"
        past = past.after_round(build_round_ended_event(ROUND, action.because, RoundAction.new_round), 1)
    assert (past.count_failures_against_budget(Cause.signal), past.list_nodes_failing_too_often(ONCE)) == (
        0,
        frozenset(),
    )
    assert past.count_checkpoint_load_failures("step-15") == 2


def test_checkpoint_is_charged_no_more_often_than_it_is_tried() -> None:
    """Where the journal cannot be written the same one is loaded on and on: that ends."""
    past, actions = Ledger(), []
    for _ in range(5):
        action = decide_after_round(ROUND, ONCE, past)
        actions.append(action)
        if isinstance(action, EndAttempt):
            break
        past = past.after_round(build_round_ended_event(ROUND, action.because, RoundAction.new_round), 1)
    assert isinstance(actions[-1], EndAttempt)
    assert actions[-1].state is RunState.failed
    assert len(actions) == 4


@pytest.mark.parametrize(
    "view",
    [
        replace(ROUND, load=None),
        replace(ROUND, load=replace(LOAD, others=0)),
        replace(ROUND, first_step=15, step=15),
        replace(ROUND, failure=Failure(cause=Cause.node_lost, message="", node="n")),
    ],
    ids=["no-load", "the-last-one", "it-stepped", "a-lost-node"],
)
def test_other_deaths_count_for_the_run(view: RoundView) -> None:
    """Without another checkpoint, after a step, or where a node is lost, the policy decides."""
    action = decide_after_round(view, NEVER, Ledger())
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert action.failure.checkpoint is None
