"""Promises of `decide`: what follows an ended round."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hpckit.model.failure import Cause, Failure, RankExit
from hpckit.model.launch import Recovery
from hpckit.model.states import RunState
from hpckit.planning.decide import EndAttempt, NewRound, RoundView, decide

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NEVER = Recovery(max_rounds=1)
TWICE = Recovery(max_rounds=2)


def fine(rank: int) -> RankExit:
    """Return the record of a rank that ended well."""
    return RankExit(rank=rank, node="n1", code=0, at=NOON)


def raised(rank: int, name: str = "ValueError", *, after_s: float = 0) -> RankExit:
    """Return the record of a rank whose user code raised."""
    return RankExit(
        rank=rank,
        node="n1",
        code=1,
        exception=name,
        message="boom",
        at=NOON + timedelta(seconds=after_s),
    )


def killed(rank: int, name: str = "SIGKILL", *, stopped: bool = False) -> RankExit:
    """Return the record of a rank that a signal ended."""
    return RankExit(rank=rank, node="n1", code=None, signal=name, stopped=stopped, at=NOON)


def test_decide_completes_when_every_rank_ended_well() -> None:
    """Exit code 0 of all ranks is the only way to completed."""
    view = RoundView(round=0, exits=[fine(0), fine(1)])
    assert decide(view, NEVER) == EndAttempt(state=RunState.completed, exit_code=0)


def test_decide_completes_in_spite_of_a_late_notice() -> None:
    """A run that had finished when the notice came is completed, not interrupted."""
    view = RoundView(round=0, exits=[fine(0)], notice="SIGTERM")
    assert decide(view, NEVER) == EndAttempt(state=RunState.completed, exit_code=0)


def test_decide_blames_the_rank_that_raised_first() -> None:
    """Its peers fail of the broken connection, possibly earlier seen, always later raised."""
    exits = [
        raised(0, "RuntimeError", after_s=0.2),
        raised(1, after_s=0.1),
        killed(2, stopped=True),
    ]
    action = decide(RoundView(round=0, exits=exits), TWICE)
    assert isinstance(action, EndAttempt)
    assert action.state is RunState.failed
    assert action.failure is not None
    assert (action.failure.rank, action.failure.cause) == (1, Cause.exception)
    assert action.failure.message == "ValueError: boom"


def test_decide_never_repeats_what_the_users_code_raised() -> None:
    """An exception or an exit code ends the attempt, whatever rounds are left."""
    code = RankExit(rank=0, node="n1", code=7, at=NOON)
    action = decide(RoundView(round=0, exits=[code]), TWICE)
    assert isinstance(action, EndAttempt)
    assert action.exit_code == 7
    assert action.failure is not None
    assert action.failure.cause is Cause.exit_code


def test_decide_starts_a_new_round_after_a_kill_while_one_is_left() -> None:
    """A rank killed by a signal is started again as often as the policy allows, no more."""
    exits = [killed(1), killed(0, "SIGTERM", stopped=True)]
    first = decide(RoundView(round=0, exits=exits), TWICE)
    assert isinstance(first, NewRound)
    assert first.because.message == "rank 1 was killed by SIGKILL"
    last = decide(RoundView(round=1, exits=exits), TWICE)
    assert isinstance(last, EndAttempt)
    assert (last.state, last.exit_code) == (RunState.failed, 137)


def test_decide_tells_cancelled_from_interrupted() -> None:
    """After a notice the run is cancelled where the user asked for it, else interrupted."""
    exits = [killed(0, "SIGTERM"), killed(1, "SIGTERM", stopped=True)]
    told = decide(RoundView(round=0, exits=exits, notice="SIGTERM"), TWICE)
    asked = decide(RoundView(round=0, exits=exits, notice="SIGTERM", cancelled=True), TWICE)
    assert isinstance(told, EndAttempt)
    assert isinstance(asked, EndAttempt)
    assert (told.state, told.exit_code) == (RunState.interrupted, 143)
    assert asked == EndAttempt(state=RunState.cancelled, exit_code=143)


def test_decide_ends_when_a_node_is_lost() -> None:
    """A failure that no rank reported ends the attempt with exit code 1 and its own words."""
    lost = Failure(cause=Cause.node_lost, message="lost the agent of n2", node="n2")
    action = decide(RoundView(round=0, exits=[], failure=lost), TWICE)
    assert action == EndAttempt(state=RunState.failed, exit_code=1, failure=lost)


def test_decide_never_completes_while_a_rank_is_unaccounted_for() -> None:
    """Exit code 0 of those that were heard says nothing of the silent one."""
    lost = Failure(cause=Cause.node_lost, message="no exit record came from n2 (rank 1)")
    action = decide(RoundView(round=0, exits=[fine(0)], failure=lost), TWICE)
    assert action == EndAttempt(state=RunState.failed, exit_code=1, failure=lost)


def test_decide_calls_ranks_that_left_on_notice_interrupted() -> None:
    """Exit code 0 after a notice is a graceful answer to it, not the end of the work."""
    view = RoundView(round=0, exits=[fine(0)], notice="SIGTERM", cut_short=True)
    action = decide(view, TWICE)
    assert isinstance(action, EndAttempt)
    assert action.state is RunState.interrupted


def test_decide_does_not_repeat_a_crash_of_the_ranks_own() -> None:
    """SIGSEGV and SIGABRT come from the rank's own code; an exception before them is the cause."""
    crash = decide(RoundView(round=0, exits=[killed(0, "SIGSEGV")]), TWICE)
    assert isinstance(crash, EndAttempt)
    assert crash.exit_code == 139
    exits = [raised(0), killed(1, "SIGABRT")]
    abort = decide(RoundView(round=0, exits=exits), TWICE)
    assert isinstance(abort, EndAttempt)
    assert abort.failure is not None
    assert abort.failure.rank == 0
