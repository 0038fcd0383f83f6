"""What to do when a round has ended. Pure: no clock, no environment, no file, no process.

Responsible for the choice between a new round and the end of the attempt, and for naming the
failure; it must not carry anything out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hpckit.model.failure import Cause, Failure, RankExit, shell_code
from hpckit.model.launch import Recovery
from hpckit.model.states import RunState

NOTICE_CODE = 143
"""Exit code of an attempt that was told to stop: 128 + SIGTERM."""

_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
"""Signals that somebody else sends; others a process brings upon itself."""

_FELT_EARLIER = timedelta(seconds=1)
"""How much earlier than its agent the peers of a killed rank may have failed of it."""

_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """One ended round: its exit records, and what else is known of its end.

    `notice` names the signal that announced the attempt's end, `cut_short` is whether ranks were
    still running then; `failure` is set where the round ended for another reason than its ranks;
    `cancelled` is whether the user asked for the end.
    """

    round: int
    exits: Sequence[RankExit]
    notice: str | None = None
    cut_short: bool = False
    cancelled: bool = False
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRound:
    """Start all ranks again, inside the same attempt."""

    because: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    """End the attempt in this state, with this exit code."""

    state: RunState
    exit_code: int
    failure: Failure | None = None


Action = NewRound | EndAttempt


def decide(view: RoundView, policy: Recovery) -> Action:
    """Return what follows an ended round.

    A rank that was killed gets a new round while the policy has one left. What the user's code
    raised or returned would only happen again, and ends the attempt.
    """
    failure = view.failure or first_failure(view.exits)
    fine = bool(view.exits) and not any(exit_.failed for exit_ in view.exits)
    if fine and failure is None and not view.cut_short:
        return EndAttempt(state=RunState.completed, exit_code=0)
    if view.notice is not None:
        return _stopped(view)
    if failure is None:
        failure = Failure(cause=Cause.signal, message="all ranks were stopped, nobody said why")
    if _may_pass(view, failure) and view.round + 1 < policy.max_rounds:
        return NewRound(because=failure)
    return EndAttempt(state=RunState.failed, exit_code=_exit_code(view, failure), failure=failure)


def _may_pass(view: RoundView, failure: Failure) -> bool:
    """Whether a new round may help: only where a rank was killed from outside.

    SIGSEGV, SIGABRT and the like come from the rank's own code, and would come again.
    """
    guilty = guilty_rank(view.exits)
    killed = guilty is not None and guilty.signal in _FROM_OUTSIDE
    return failure.cause is Cause.signal and view.failure is None and killed


def _stopped(view: RoundView) -> EndAttempt:
    if view.cancelled:
        return EndAttempt(state=RunState.cancelled, exit_code=NOTICE_CODE)
    failure = Failure(cause=Cause.notice, message=f"told to stop by {view.notice}")
    return EndAttempt(state=RunState.interrupted, exit_code=NOTICE_CODE, failure=failure)


def _exit_code(view: RoundView, failure: Failure) -> int:
    guilty = [exit_ for exit_ in view.exits if exit_.rank == failure.rank]
    return shell_code(guilty[0]) if guilty else 1


def guilty_rank(exits: Sequence[RankExit]) -> RankExit | None:
    """Return the rank that failed first, None where none failed by itself.

    The others usually fail of it (a broken connection, our own SIGTERM). The order is that of the
    exceptions' own times, since a raising rank's peers may be gone before it has left Python. A
    killed rank's end is seen by its agent only, a little after its peers felt it: it comes first
    where it is about as early.
    """
    failed = [exit_ for exit_ in exits if exit_.failed and not exit_.stopped]
    return min(failed, key=_failed_at, default=None)


def _failed_at(exit_: RankExit) -> datetime:
    at = exit_.at or _LAST
    killed = exit_.signal in _FROM_OUTSIDE and exit_.exception is None
    return at - _FELT_EARLIER if killed else at


def first_failure(exits: Sequence[RankExit]) -> Failure | None:
    """Return the failure that the exit records tell of, None where there is none."""
    guilty = guilty_rank(exits)
    if guilty is None:
        return None
    return Failure(
        cause=_cause(guilty),
        message=_message(guilty),
        rank=guilty.rank,
        node=guilty.node,
        step=guilty.step,
        traceback=guilty.traceback,
    )


def _cause(exit_: RankExit) -> Cause:
    if exit_.exception == "RendezvousError":
        return Cause.rendezvous
    if exit_.exception is not None:
        return Cause.exception
    return Cause.exit_code if exit_.signal is None else Cause.signal


def _message(exit_: RankExit) -> str:
    if exit_.exception is not None:
        return f"{exit_.exception}: {exit_.message}"
    if exit_.signal is not None:
        return f"rank {exit_.rank} was killed by {exit_.signal}"
    return f"rank {exit_.rank} ended with exit code {exit_.code}"
