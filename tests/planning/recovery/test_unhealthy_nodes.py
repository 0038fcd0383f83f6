"""Promises about unhealthy nodes: others take their place, or a new attempt, or the run warns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.failure import Cause
from hpckit.model.launch import Recovery
from hpckit.model.states import RoundAction
from hpckit.planning.preflight.judge import unhealthy_failure
from hpckit.planning.recovery.actions import EndAttempt, NewRound, round_ended
from hpckit.planning.recovery.decide import decide, may_avoid
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.node_choice import RoundSizes, first_nodes
from hpckit.planning.recovery.round_view import RoundView

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
        "failure": unhealthy_failure(reasons),
        "unhealthy": reasons,
        "wanted": len(standing),
        "fewest": len(standing),
        "requeues": True,
    }
    return RoundView(**{**known, **about})


def test_spare_is_taken_first() -> None:
    """An unhealthy node is chosen last, also behind one that failed before."""
    found = first_nodes(
        ("n0", "n1", "n2"), Ledger(), POLICY, RoundSizes(wanted=2, fewest=2), {"n0": "lost"}
    )
    assert found == ("n1", "n2")


def test_without_a_spare_a_new_attempt_leaves_the_node_out() -> None:
    """The next attempt excludes it; the budget is that of the cause."""
    past = Ledger()
    for _ in range(2):
        end = decide(view(["n0", "n1"], ["n1"]), POLICY, past)
        assert isinstance(end, EndAttempt)
        assert (end.again, end.excluded) == (True, ("n1",))
        assert end.failure is not None
        assert end.failure.cause is Cause.unhealthy
        ended = round_ended(view(["n0", "n1"], ["n1"]), end.failure, RoundAction.new_attempt)
        past = past.after(ended, 1)
    assert past.excluded(POLICY) == {"n1"}


def test_run_that_may_shrink_continues_without_the_node() -> None:
    """`resources.min_nodes` allows a smaller round, at once."""
    action = decide(view(["n0", "n1"], ["n1"], fewest=1), POLICY, Ledger())
    assert isinstance(action, NewRound)
    assert action.nodes == ("n0",)


def test_no_alternative_means_no_interruption() -> None:
    """Neither a spare nor a new attempt, or a policy that allows none: the round starts."""
    alone = view(["n0"], ["n0"], requeues=False)
    assert not may_avoid(alone, POLICY, Ledger())
    assert not may_avoid(view(["n0"], ["n0"]), Recovery(), Ledger())
    assert may_avoid(view(["n0"], ["n0"]), POLICY, Ledger())


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
    if not may_avoid(some, POLICY, Ledger()):
        assert not requeues
        assert len(set(standing) - bad) < fewest
        return
    action = decide(some, POLICY, Ledger())
    if isinstance(action, NewRound):
        assert not bad & {*action.nodes}
        assert len(action.nodes) >= fewest
    else:
        assert action.again
        assert bad <= {*action.excluded}
