"""Promises of `decide`: what follows an ended round."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hpckit.model.failure import Cause, ExitReason, Failure, RankExit, StateKept
from hpckit.model.launch import Recovery
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.recovery.decide import decide_after_round as decide_after
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.node_choice import RoundSizes, choose_first_round_nodes
from hpckit.planning.recovery.round_view import (
    Action,
    EndAttempt,
    NewRound,
    RoundView,
    StopNotice,
    build_round_ended_event,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NEVER = Recovery()
ONCE = Recovery(restarts={"signal": 1, "node_lost": 1, "time_limit": 1}, requeue=True)
NOTHING = Ledger()
TERM = StopNotice(signal="SIGTERM")


def view(**about: Any) -> RoundView:
    """Return an ended round on two nodes that are both still there."""
    nodes = ("n1", "n2")
    standing = {"members": nodes, "standing": nodes, "wanted": 2, "fewest": 2}
    return RoundView(**{"round": 0, "at": NOON, "exits": (), **standing, **about})


def decide(ended: RoundView, policy: Recovery) -> Action:
    """Decide on a run's first round."""
    return decide_after(ended, policy, NOTHING)


def fine(rank: int) -> RankExit:
    """Return the record of a rank that ended well."""
    return RankExit(rank=rank, node="n1", code=0, reason=ExitReason.returned, at=NOON)


def raised(rank: int, name: str = "ValueError", *, after_s: float = 0) -> RankExit:
    """Return the record of a rank whose user code raised."""
    return RankExit(
        rank=rank,
        node="n1",
        code=1,
        reason=ExitReason.raised,
        exception=name,
        message="boom",
        at=NOON + timedelta(seconds=after_s),
    )


def killed(rank: int, name: str = "SIGKILL", *, stopped: bool = False) -> RankExit:
    """Return the record of a rank that a signal ended."""
    return RankExit(
        rank=rank, node="n1", code=None, reason=ExitReason.killed, signal=name, stopped=stopped, at=NOON
    )


def left(rank: int, kept: StateKept = StateKept.saved) -> RankExit:
    """Return the record of a rank that left as it was told."""
    return RankExit(rank=rank, node="n1", code=75, reason=ExitReason.left, kept=kept, at=NOON)


def test_decide_completes_when_every_rank_ended_well() -> None:
    """Exit code 0 of all ranks is the only way to completed."""
    ended = view(exits=[fine(0), fine(1)])
    assert decide(ended, NEVER) == EndAttempt(state=RunState.completed, exit_code=0)


def test_decide_completes_in_spite_of_a_late_notice() -> None:
    """A run that had finished when the notice came is completed, not interrupted."""
    ended = view(exits=[fine(0)], notice=TERM)
    assert decide(ended, NEVER) == EndAttempt(state=RunState.completed, exit_code=0)


def test_decide_blames_the_rank_that_raised_first() -> None:
    """Its peers fail of the broken connection, possibly earlier seen, always later raised."""
    exits = [raised(0, "RuntimeError", after_s=0.2), raised(1, after_s=0.1), killed(2, stopped=True)]
    action = decide(view(exits=exits), ONCE)
    assert isinstance(action, EndAttempt)
    assert action.state is RunState.failed
    assert action.failure is not None
    assert (action.failure.rank, action.failure.cause) == (1, Cause.exception)
    assert action.failure.message == "ValueError: boom"


def test_decide_never_repeats_what_the_users_code_raised() -> None:
    """An exception or an exit code ends the attempt, whatever rounds are left."""
    code = RankExit(rank=0, node="n1", code=7, at=NOON)
    action = decide(view(exits=[code]), ONCE)
    assert isinstance(action, EndAttempt)
    assert action.exit_code == 7
    assert action.failure is not None
    assert action.failure.cause is Cause.exit_code


def test_decide_starts_a_new_round_after_a_kill_while_one_is_left() -> None:
    """A rank killed by a signal is started again as often as the policy allows, no more."""
    exits = [killed(1), killed(0, "SIGTERM", stopped=True)]
    first = decide(view(exits=exits, step=7), ONCE)
    assert isinstance(first, NewRound)
    assert first.because.message == "rank 1 was killed by SIGKILL"
    assert (first.nodes, first.pause) == (("n1", "n2"), timedelta())
    past = NOTHING.after_round(build_round_ended_event(view(step=7), first.because, RoundAction.new_round), 1)
    last = decide_after(view(round=1, exits=exits, step=7), ONCE, past)
    assert isinstance(last, EndAttempt)
    assert (last.state, last.exit_code) == (RunState.failed, 137)
    assert last.failure is not None
    assert "recovery.restarts.signal is 1" in last.failure.message


def test_decide_starts_again_where_the_run_got_further() -> None:
    """A step further than ever before refills the budgets; the same step does not."""
    exits = [killed(1)]
    because = Failure(cause=Cause.signal, message="", signature="another")
    past = NOTHING.after_round(build_round_ended_event(view(step=7), because, RoundAction.new_round), 1)
    assert isinstance(decide_after(view(exits=exits, step=8), ONCE, past), NewRound)
    assert isinstance(decide_after(view(exits=exits, step=7), ONCE, past), EndAttempt)


def test_decide_stops_a_crash_loop_across_attempts() -> None:
    """The same failure three times without getting further is the end, whatever is left."""
    policy = Recovery(restarts={"signal": 100}, requeue=True)
    past, actions = NOTHING, list[Action]()
    for attempt in (1, 1, 2):
        ended = view(exits=[killed(1)], step=7, attempt=attempt, requeues=True)
        action = decide_after(ended, policy, past)
        actions.append(action)
        failure = action.because if isinstance(action, NewRound) else action.failure
        past = past.after_round(build_round_ended_event(ended, failure, RoundAction.end), attempt)
    assert isinstance(actions[0], NewRound)
    assert isinstance(actions[1], EndAttempt)
    assert actions[1].again, "elsewhere: the node failed twice"
    assert isinstance(actions[2], EndAttempt)
    assert (actions[2].again, actions[2].state) == (False, RunState.failed)
    assert failure is not None
    assert "the same failure 3 times without getting further" in failure.message


def test_decide_replaces_a_lost_node_by_a_spare() -> None:
    """A spare takes the place of the lost node; the others keep theirs."""
    lost = Failure(cause=Cause.node_lost, message="lost", node="n1")
    ended = view(failure=lost, members=("n1", "n2"), standing=("n2", "n3"))
    action = decide(ended, ONCE)
    assert isinstance(action, NewRound)
    assert action.nodes == ("n3", "n2")


def test_decide_shrinks_to_the_fewest_nodes_and_then_asks_for_a_new_attempt() -> None:
    """Without a spare the run goes on smaller, as far as it may; then elsewhere."""
    lost = Failure(cause=Cause.node_lost, message="lost", node="n1")
    ended = view(failure=lost, standing=("n2",), requeues=True)
    smaller = decide(replace(ended, fewest=1), ONCE)
    assert isinstance(smaller, NewRound)
    assert smaller.nodes == ("n2",)
    elsewhere = decide(ended, ONCE)
    assert isinstance(elsewhere, EndAttempt)
    assert (elsewhere.state, elsewhere.again) == (RunState.interrupted, True)
    assert elsewhere.excluded == ("n1",)


def test_decide_leaves_out_a_node_that_failed_twice() -> None:
    """A second failure on the same node makes a spare take its place, and counts once."""
    policy = Recovery(restarts={"signal": 1}, max_identical_failures=9)
    because = Failure(cause=Cause.signal, message="", node="n1", signature="one")
    past = NOTHING.after_round(build_round_ended_event(view(step=7), because, RoundAction.new_round), 1)
    exits = [killed(0)]
    action = decide_after(view(exits=exits, step=7, standing=("n1", "n2", "n3")), policy, past)
    assert isinstance(action, NewRound)
    assert action.nodes == ("n3", "n2")
    alone = decide_after(view(exits=exits, step=7, standing=("n1", "n2")), policy, past)
    assert isinstance(alone, EndAttempt), "without another node both failures count"


def test_decide_pauses_ever_longer_between_rounds_without_progress() -> None:
    """The first restart is at once, further ones wait 1, 2, 4 … seconds, within bounds."""
    policy = Recovery(restarts={"signal": 99}, max_identical_failures=99, max_backoff_s=3)
    past, pauses = NOTHING, []
    for _ in range(4):
        ended = view(exits=[killed(1)], step=7)
        action = decide_after(ended, policy, past)
        assert isinstance(action, NewRound)
        pauses.append(action.pause.total_seconds())
        past = past.after_round(build_round_ended_event(ended, action.because, RoundAction.end), 1)
    assert pauses == [0, 1, 2, 3]


def test_decide_asks_for_a_new_attempt_at_the_time_limit_only() -> None:
    """Slurm starts a preempted job again by itself; a job at its time limit it does not."""
    limit = StopNotice(signal="SIGUSR1", cause=Cause.time_limit)
    ended = view(exits=[left(0)], cut_short=True, step=7, requeues=True, saved=True)
    unsaved = decide(replace(ended, notice=limit, saved=False), ONCE)
    assert isinstance(unsaved, EndAttempt)
    assert not unsaved.again, "it would only come to the same limit once more"
    again = decide(replace(ended, notice=limit), ONCE)
    assert isinstance(again, EndAttempt)
    assert (again.state, again.again) == (RunState.interrupted, True)
    preempted = decide(replace(ended, notice=StopNotice(signal="SIGTERM", cause=Cause.preempted)), ONCE)
    assert isinstance(preempted, EndAttempt)
    assert not preempted.again
    assert preempted.failure is not None
    assert preempted.failure.cause is Cause.preempted


def test_decide_blames_nobody_for_a_lost_connection_while_somebody_failed_otherwise() -> None:
    """Whoever lost its peer is a victim, even where it was quicker to say so."""
    felt = raised(0, "DistBackendError", after_s=-5)
    action = decide(view(exits=[felt, killed(1)]), NEVER)
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert action.failure.rank == 1


def test_first_nodes_prefer_those_that_never_failed() -> None:
    """A node that was lost before is only taken where there is no other."""
    because = Failure(cause=Cause.node_lost, message="", node="n1")
    past = NOTHING.after_round(build_round_ended_event(view(), because, RoundAction.new_attempt), 1)
    assert choose_first_round_nodes(("n1", "n2", "n3"), past, ONCE, RoundSizes(wanted=2)) == ("n2", "n3")
    assert choose_first_round_nodes(("n1", "n2"), past, ONCE, RoundSizes(wanted=2)) == ("n2", "n1")


def test_decide_tells_cancelled_from_interrupted() -> None:
    """After a notice the run is cancelled where the user asked for it, else interrupted."""
    exits = [killed(0, "SIGTERM"), killed(1, "SIGTERM", stopped=True)]
    told = decide(view(exits=exits, notice=TERM), ONCE)
    asked = decide(view(exits=exits, notice=TERM, cancelled=True), ONCE)
    assert isinstance(told, EndAttempt)
    assert isinstance(asked, EndAttempt)
    assert (told.state, told.exit_code) == (RunState.interrupted, 143)
    assert asked == EndAttempt(state=RunState.cancelled, exit_code=143)


def test_decide_ends_when_a_node_is_lost() -> None:
    """A failure that no rank reported ends the attempt with exit code 1 and its own words."""
    lost = Failure(cause=Cause.node_lost, message="lost the agent of n2", node="n2")
    action = decide(view(failure=lost, standing=("n1",)), ONCE)
    assert action == EndAttempt(state=RunState.failed, exit_code=1, failure=lost)


def test_decide_never_completes_while_a_rank_is_unaccounted_for() -> None:
    """Exit code 0 of those that were heard says nothing of the silent one."""
    lost = Failure(cause=Cause.node_lost, message="no exit record came from n2 (rank 1)")
    action = decide(view(exits=[fine(0)], failure=lost), NEVER)
    assert action == EndAttempt(state=RunState.failed, exit_code=1, failure=lost)


def test_decide_calls_ranks_that_left_on_notice_interrupted() -> None:
    """Exit code 0 after a notice is a graceful answer to it, not the end of the work."""
    ended = view(exits=[left(0)], notice=TERM, cut_short=True)
    action = decide(ended, ONCE)
    assert isinstance(action, EndAttempt)
    assert action.state is RunState.interrupted


def test_decide_does_not_repeat_a_crash_of_the_ranks_own() -> None:
    """SIGSEGV and SIGABRT come from the rank's own code; an exception before them is the cause."""
    crash = decide(view(exits=[killed(0, "SIGSEGV")]), ONCE)
    assert isinstance(crash, EndAttempt)
    assert crash.exit_code == 139
    exits = [raised(0), killed(1, "SIGABRT")]
    abort = decide(view(exits=exits), ONCE)
    assert isinstance(abort, EndAttempt)
    assert abort.failure is not None
    assert abort.failure.rank == 0


@pytest.mark.parametrize(
    "ended",
    [
        {"code": 0, "reason": ExitReason.ended},
        {"code": -10, "signal": "SIGUSR1", "reason": ExitReason.killed},
        {"code": 138},
    ],
    ids=["saved", "killed", "killed in a shell"],
)
def test_a_command_that_ends_by_a_request_to_save_goes_on(ended: dict[str, Any]) -> None:
    """`scancel -s USR1`: it has not completed, nor failed; a new round begins in the allocation."""
    exits = (RankExit(rank=0, node="n1", at=NOON, **ended),)
    asked = view(exits=exits, dismissed=StopNotice(signal="SIGUSR1"))
    action = decide(asked, Recovery(restarts={"left": 1}))
    assert isinstance(action, NewRound), action
    assert action.because.cause is Cause.left
    unasked = decide(view(exits=exits), Recovery(restarts={}))
    assert isinstance(unasked, EndAttempt)


def test_another_end_than_by_the_request_to_save_keeps_its_cause() -> None:
    """A rank that raised at the same time has failed."""
    asked = view(exits=(raised(0), fine(1)), dismissed=StopNotice(signal="SIGUSR1"))
    action = decide(asked, Recovery(restarts={}))
    assert isinstance(action, EndAttempt)
    assert action.state is RunState.failed
