"""Promises about ends: what exit records come to, over all reasons, notices and states saved."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.failure import Cause, ExitReason, ExitStatement, RankExit, StateKept, ToldBy
from hpckit.model.launch import Recovery
from hpckit.model.states import RunState
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ends import (
    LEFT_CODE,
    RoundOutcome,
    add_exit_reason,
    describe_early_return,
    find_last_done_step,
    find_round_outcome,
)
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import EndAttempt, NewRound, RoundView, StopNotice

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROUND = RoundView(round=0, at=NOON, exits=(), members=("n",), standing=("n",))
NOTICE = StopNotice(signal="SIGTERM")


def exit_(reason: ExitReason, kept: StateKept = StateKept.nothing, *, rank: int = 0) -> RankExit:
    """Return the record of a rank that left for this reason."""
    signal = "SIGKILL" if reason is ExitReason.killed else None
    code = None if signal else 0
    return RankExit(rank=rank, node="n", code=code, signal=signal, reason=reason, kept=kept)


def expected(reason: ExitReason, kept: StateKept, *, told: bool) -> RoundOutcome:
    """Return what the end of a lone rank comes to, by the words of the promise."""
    if reason is ExitReason.returned:
        return RoundOutcome.unsaved if kept is StateKept.unsaved else RoundOutcome.completed
    if reason is ExitReason.ended:
        return RoundOutcome.left if told else RoundOutcome.completed
    return {ExitReason.left: RoundOutcome.left, ExitReason.pruned: RoundOutcome.pruned}.get(
        reason, RoundOutcome.failed
    )


@pytest.mark.parametrize(("reason", "kept", "told"), list(product(ExitReason, StateKept, [False, True])))
def test_end_of_a_rank_is_its_reason(reason: ExitReason, kept: StateKept, told: bool) -> None:  # noqa: FBT001  # parametrized
    """Each reason, with each state saved, with and without a notice, has one meaning."""
    assert find_round_outcome([exit_(reason, kept)], told=told) is expected(reason, kept, told=told)


records = st.builds(
    exit_, st.sampled_from(ExitReason), st.sampled_from(StateKept), rank=st.integers(0, 3)
) | st.builds(
    lambda code, told: RankExit(rank=0, node="n", code=code, reason=ExitReason.left, told_by=told),
    st.sampled_from([0, 1, LEFT_CODE, None]),
    st.sampled_from(ToldBy) | st.none(),
)


rounds = st.fixed_dictionaries(
    {
        "exits": st.lists(records, max_size=4),
        "cut_short": st.booleans(),
        "notice": st.sampled_from([None, NOTICE]),
        "dismissed": st.sampled_from([None, NOTICE]),
        "cancelled": st.booleans(),
        "saved": st.booleans(),
        "requeues": st.booleans(),
    }
)
budgets = st.dictionaries(st.sampled_from([str(cause) for cause in Cause]), st.integers(0, 3))


@pytest.mark.parametrize(
    ("kept", "step", "told", "outcome"),
    [
        (StateKept.nothing, 39, True, RoundOutcome.left),
        (StateKept.nothing, 99, True, RoundOutcome.completed),
        (StateKept.nothing, 39, False, RoundOutcome.completed),
        (StateKept.saved, 39, True, RoundOutcome.completed),
    ],
)
def test_loop_that_ends_early_when_told_to_stop_is_not_completed(
    kept: StateKept,
    step: int,
    told: bool,  # noqa: FBT001  # parametrized
    outcome: RoundOutcome,
) -> None:
    """Lightning leaves with exit code 0 at SIGTERM; who registered state chose to return."""
    early = replace(exit_(ExitReason.returned, kept), step=step, total=100)
    assert find_round_outcome([early], told=told) is outcome


@given(about=rounds, restarts=budgets)
def test_decide_completes_only_where_every_rank_returned(
    about: dict[str, Any], restarts: dict[str, int]
) -> None:
    """No combination yields completed but that: all returned, and what was registered is saved.

    A rank that was pruned returned for good, too.
    """
    ended = replace(ROUND, **about)
    policy = Recovery(restarts=restarts, requeue=ended.requeues)
    action = decide_after_round(ended, policy, Ledger())
    completed = isinstance(action, EndAttempt) and action.state is RunState.completed
    allowed = {ExitReason.returned, ExitReason.pruned} | (
        set() if ended.cut_short or ended.dismissed else {ExitReason.ended}
    )
    whole = bool(ended.exits) and all(
        one.reason in allowed and not (one.reason is ExitReason.returned and one.kept is StateKept.unsaved)
        for one in ended.exits
    )
    assert completed == whole
    if isinstance(action, EndAttempt):
        assert (action.exit_code == 0) == completed


def test_decide_goes_on_where_ranks_left_unasked() -> None:
    """A signal to one rank is an interruption: a new round, with its words and its own budget."""
    told = replace(
        exit_(ExitReason.left, StateKept.saved, rank=1), told_by=ToldBy.signal, told_signal="SIGUSR1"
    )
    peer = replace(exit_(ExitReason.left, StateKept.saved), told_by=ToldBy.peer)
    policy = Recovery(restarts={"left": 1})
    action = decide_after_round(replace(ROUND, exits=(peer, told), step=9), policy, Ledger())
    assert isinstance(action, NewRound)
    assert (action.because.cause, action.because.rank, action.because.step) == (Cause.left, 1, 9)
    assert "asked to leave by SIGUSR1" in action.because.message
    refused = decide_after_round(replace(ROUND, exits=(peer, told), step=9), Recovery(), Ledger())
    assert isinstance(refused, EndAttempt)
    assert (refused.state, refused.exit_code != 0) == (RunState.failed, True)


@pytest.mark.parametrize("reason", [ExitReason.left, ExitReason.killed])
def test_decide_goes_on_after_a_notice_that_was_none(reason: ExitReason) -> None:
    """An agent was sent SIGTERM and the job runs on: a new round, whatever its ranks did of it."""
    one = replace(exit_(reason), stopped=reason is ExitReason.killed)
    ended = replace(ROUND, exits=(one,), cut_short=True, dismissed=NOTICE)
    action = decide_after_round(ended, Recovery(restarts={"left": 1}), Ledger())
    assert isinstance(action, NewRound)
    assert action.because.cause is Cause.left
    assert "the job runs on" in action.because.message


SEEN = RankExit(rank=0, node="n", code=0)
LEFT = ExitStatement(reason=ExitReason.left, told_by=ToldBy.signal, signal="SIGTERM", step=3, total=9)
RETURNED = ExitStatement(reason=ExitReason.returned, kept=StateKept.saved, step=8, total=9)
PROMISED = ExitStatement(reason=ExitReason.exited)
RAISED = replace(SEEN, code=1, exception="ValueError")
KILLED = replace(SEEN, code=None, signal="SIGKILL")


@pytest.mark.parametrize(
    ("seen", "said", "of_function", "of_command"),
    [
        (SEEN, None, ExitReason.exited, ExitReason.ended),
        (SEEN, PROMISED, ExitReason.exited, ExitReason.exited),
        (SEEN, RETURNED, ExitReason.returned, ExitReason.returned),
        (SEEN, LEFT, ExitReason.left, ExitReason.left),
        (replace(SEEN, code=LEFT_CODE), LEFT, ExitReason.left, ExitReason.left),
        (replace(SEEN, code=LEFT_CODE), None, ExitReason.exited, ExitReason.left),
        (replace(SEEN, code=3), None, ExitReason.exited, ExitReason.exited),
        (replace(SEEN, code=3), RETURNED, ExitReason.exited, ExitReason.exited),
        (replace(SEEN, code=3), LEFT, ExitReason.left, ExitReason.left),
        (RAISED, None, ExitReason.raised, ExitReason.raised),
        (RAISED, PROMISED, ExitReason.raised, ExitReason.raised),
        (KILLED, None, ExitReason.killed, ExitReason.killed),
        (KILLED, RETURNED, ExitReason.killed, ExitReason.killed),
        (KILLED, LEFT, ExitReason.left, ExitReason.left),
    ],
)
def test_reason_is_what_the_rank_said_where_its_process_ended_so(
    seen: RankExit, said: ExitStatement | None, of_function: ExitReason, of_command: ExitReason
) -> None:
    """Exit code 0 without a word is the end of a plain command only."""
    assert add_exit_reason(seen, said, is_command=False).reason is of_function
    assert add_exit_reason(seen, said, is_command=True).reason is of_command


def test_returning_early_is_told() -> None:
    """Early stopping is complete, and shown with the steps that were done; the last is not."""
    early = replace(exit_(ExitReason.returned, StateKept.saved), step=39, total=100)
    assert describe_early_return([early, early]) == "returned at step 40 of 100"
    assert describe_early_return([replace(early, step=None)]) == "returned at step 0 of 100"
    assert describe_early_return([replace(early, step=99)]) == ""
    assert describe_early_return([exit_(ExitReason.ended)]) == ""


def test_step_that_ranks_left_is_not_done() -> None:
    """What a round is said to have done is what its ranks say, not what began."""
    left = replace(exit_(ExitReason.returned, StateKept.saved), step=39, total=100)
    assert find_last_done_step([left, left], 40) == 39
    assert find_last_done_step([replace(left, step=99)], 99) == 99
    assert find_last_done_step([exit_(ExitReason.exited)], 40) == 40
    assert find_last_done_step([], None) is None
