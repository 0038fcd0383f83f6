"""Promises about unhealthy nodes: others take their place, or a new attempt, or the run warns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Recovery
from hpckit.model.states import RequeueOutcome, RoundAction
from hpckit.planning.preflight.judge import build_unhealthy_nodes_failure
from hpckit.planning.recovery.decide import decide_after_round, explain_using_unhealthy_nodes
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.node_choice import RoundSizes, choose_first_round_nodes
from hpckit.planning.recovery.round_view import EndAttempt, NewRound, RoundView, build_round_ended_event

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Recovery(requeue=True, restarts={"unhealthy": 2})
NAMES = [f"n{place}" for place in range(8)]


def view(standing: list[str], bad: list[str], **about: Any) -> RoundView:
    """Return a round that could not start because some of its nodes are unhealthy."""
    reasons = dict.fromkeys(bad, "a GPU is lost")
    known: dict[str, Any] = {
        "round": 0,
        "at": NOON,
        "exits": (),
        "members": tuple(standing),
        "standing": tuple(standing),
        "failure": build_unhealthy_nodes_failure(reasons),
        "unhealthy": reasons,
        "wanted": len(standing),
        "fewest": len(standing),
        "requeues": True,
    }
    return RoundView(**{**known, **about})


def test_spare_is_taken_first() -> None:
    """An unhealthy node is chosen last, also behind one that failed before."""
    found = choose_first_round_nodes(
        ("n0", "n1", "n2"), Ledger(), POLICY, RoundSizes(wanted=2, fewest=2), {"n0": "lost"}
    )
    assert found == ("n1", "n2")


def test_without_a_spare_a_new_attempt_leaves_the_node_out() -> None:
    """The next attempt excludes it; the budget is that of the cause."""
    past = Ledger()
    for _ in range(2):
        end = decide_after_round(view(["n0", "n1"], ["n1"]), POLICY, past)
        assert isinstance(end, EndAttempt)
        assert (end.again, end.excluded) == (True, ("n1",))
        assert end.failure is not None
        assert end.failure.cause is Cause.unhealthy
        ended = build_round_ended_event(view(["n0", "n1"], ["n1"]), end.failure, RoundAction.new_attempt)
        past = past.after_round(ended, 1)
    assert past.list_nodes_failing_too_often(POLICY) == {"n1"}


def test_run_that_may_shrink_continues_without_the_node() -> None:
    """`resources.min_nodes` allows a smaller round, at once."""
    action = decide_after_round(view(["n0", "n1"], ["n1"], fewest=1), POLICY, Ledger())
    assert isinstance(action, NewRound)
    assert action.nodes == ("n0",)


def test_no_alternative_means_no_interruption() -> None:
    """Neither a spare nor a new attempt, or a policy that allows none: the round starts."""
    alone = view(["n0"], ["n0"], requeues=False)
    assert explain_using_unhealthy_nodes(alone, POLICY, Ledger()) == "the run can have no other nodes"
    assert explain_using_unhealthy_nodes(view(["n0"], ["n0"]), Recovery(), Ledger()) == (
        "recovery.restarts.unhealthy is 0"
    )
    assert explain_using_unhealthy_nodes(view(["n0"], ["n0"]), POLICY, Ledger()) is None


def requeued(kept: set[str], excluded: set[str]) -> events.RequeueAsked:
    """Return Slurm's answer to a wish to leave nodes out."""
    return events.RequeueAsked(
        at=NOON, outcome=RequeueOutcome.requeued, kept=tuple(sorted(kept)), excluded=tuple(sorted(excluded))
    )


def test_node_that_slurm_cannot_leave_out_is_trained_on() -> None:
    """After a new attempt that got it again a run asks for no other; elsewhere it still would."""
    past = Ledger().add_requeue_result(requeued({"n0"}, set()))
    assert (
        explain_using_unhealthy_nodes(view(["n0"], ["n0"]), POLICY, past) == "the run can have no other nodes"
    )
    assert explain_using_unhealthy_nodes(view(["n0", "n1"], ["n0", "n1"]), POLICY, past) is None
    later = past.add_requeue_result(requeued(set(), {"n0"}))
    assert explain_using_unhealthy_nodes(view(["n0"], ["n0"]), POLICY, later) is None


def test_failures_on_a_node_that_cannot_be_left_out_count_each() -> None:
    """A program that crashes on its only node, which is unhealthy, is not started for ever."""
    past = Ledger().add_requeue_result(requeued({"n0"}, set()))
    policy = Recovery(requeue=True, restarts={"crash": 3}, max_identical_failures=100)
    for count in range(4):
        failure = build_unhealthy_nodes_failure({"n0": "bad memory"})
        crash = view(["n0"], ["n0"], failure=_as_crash(failure, count))
        action = decide_after_round(crash, policy, past)
        assert isinstance(action, NewRound) == (count < 3), "a new round here, until the budget"
        past = past.after_round(build_round_ended_event(crash, crash.failure, RoundAction.end), 1)


def _as_crash(failure: Failure, count: int) -> Failure:
    return replace(failure, cause=Cause.crash, signature=f"crash {count}")


@given(drawn=st.data())
def test_a_run_on_unhealthy_nodes_trains_after_a_bounded_number_of_attempts(drawn: st.DataObject) -> None:
    """Whatever is bad or required, and whatever Slurm refuses: at most the budget and one."""
    cluster = NAMES[: drawn.draw(st.integers(1, 8), "nodes")]
    wanted = drawn.draw(st.integers(1, len(cluster)), "wanted")
    bad = drawn.draw(st.sets(st.sampled_from(cluster)), "bad")
    required = drawn.draw(st.sets(st.sampled_from(cluster), max_size=wanted), "required")
    allowed = drawn.draw(st.integers(0, 4), "allowed")
    hours, refused = drawn.draw(st.integers(0, 10), "hours"), drawn.draw(st.booleans(), "refused")
    policy = Recovery(requeue=True, restarts={"unhealthy": allowed})
    past, excluded, attempts, at = Ledger(), set[str](), 0, NOON
    while True:
        attempts += 1
        assert attempts <= allowed + 1
        at += timedelta(hours=hours)
        free = [one for one in cluster if one not in excluded]
        taken = sorted(free, key=lambda one: one not in required)[:wanted]
        assert len(taken) == wanted, "the job could not start"
        ill = sorted(bad & {*taken})
        if not ill:
            break
        some = view(taken, ill, at=at)
        if explain_using_unhealthy_nodes(some, policy, past) is not None:
            break
        action = decide_after_round(some, policy, past)
        assert isinstance(action, EndAttempt)
        assert action.again
        past = past.after_round(
            build_round_ended_event(some, action.failure, RoundAction.new_attempt), attempts
        )
        new = {*action.excluded} - excluded
        kept = new if refused else new & required
        if len(cluster) - len(excluded | (new - kept)) < wanted:
            kept = new
        excluded |= new - kept
        past = past.add_requeue_result(requeued(kept, excluded))


@given(
    standing=st.lists(st.sampled_from(NAMES), unique=True, min_size=1),
    bad=st.sets(st.sampled_from(NAMES), min_size=1),
    fewest=st.integers(1, 8),
    requeues=st.booleans(),
)
def test_unhealthy_nodes_train_only_where_nothing_else_is_possible(
    standing: list[str],
    bad: set[str],
    fewest: int,
    requeues: bool,  # noqa: FBT001  # drawn
) -> None:
    """Whatever stands: a round with an unhealthy node means that it could not be avoided."""
    some = view(standing, sorted(bad), fewest=fewest, requeues=requeues)
    if explain_using_unhealthy_nodes(some, POLICY, Ledger()) is not None:
        assert not requeues
        assert len(set(standing) - bad) < fewest
        return
    action = decide_after_round(some, POLICY, Ledger())
    if isinstance(action, NewRound):
        assert not bad & {*action.nodes}
        assert len(action.nodes) >= fewest
    else:
        assert action.again
        assert bad <= {*action.excluded}
