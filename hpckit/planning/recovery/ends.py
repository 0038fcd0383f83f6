"""How the ends of ranks combine: why each one left, and whether the round is complete. Pure.

A round is `completed` only if every rank returned and its registered state is saved; otherwise the
first rank that failed is found, and its failure named.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from hpckit.model.failure import Cause, ExitReason, ExitStatement, Failure, RankExit, StateKept, ToldBy
from hpckit.planning.recovery.classify import FROM_OUTSIDE, classify_rank_exit, compute_failure_signature
from hpckit.values import replace

_LAST = datetime.max.replace(tzinfo=UTC)
_FELT_EARLIER = timedelta(seconds=1)
"""How much earlier the peers of a killed rank may fail than its agent reports its end."""

LEFT_CODE = 75
"""Exit code of a rank that left as requested (EX_TEMPFAIL of sysexits.h: try again later).

Not 0, so that nothing takes an unfinished run for a finished one: a shell's `&&`, Slurm, torchrun.
"""


class RoundOutcome(StrEnum):
    """The outcome of a round, from the best to the worst; the worst rank decides."""

    completed = "completed"
    pruned = "pruned"
    left = "left"
    unsaved = "unsaved"
    failed = "failed"


_WORST = {end: place for place, end in enumerate(RoundOutcome)}

_ENDS = {
    ExitReason.left: RoundOutcome.left,
    ExitReason.pruned: RoundOutcome.pruned,
    ExitReason.raised: RoundOutcome.failed,
    ExitReason.exited: RoundOutcome.failed,
    ExitReason.killed: RoundOutcome.failed,
}


def find_round_outcome(exits: Sequence[RankExit], *, told: bool) -> RoundOutcome:
    """Return the combined outcome; `told` is whether the ranks were asked to leave."""
    ends = [_find_rank_outcome(exit_, told=told) for exit_ in exits]
    return max(ends, key=_WORST.__getitem__, default=RoundOutcome.failed)


def _find_rank_outcome(exit_: RankExit, *, told: bool) -> RoundOutcome:
    if exit_.reason is ExitReason.returned:
        if exit_.kept is StateKept.unsaved:
            return RoundOutcome.unsaved
        # A trainer with handlers and state of its own (Lightning) ends its loop, with exit code 0.
        stopped = told and exit_.kept is StateKept.nothing and describe_early_return((exit_,))
        return RoundOutcome.left if stopped else RoundOutcome.completed
    if exit_.reason is ExitReason.ended:
        # Many scripts end with exit code 0 when they are asked to stop.
        return RoundOutcome.left if told else RoundOutcome.completed
    return _ENDS[exit_.reason]


def prefer_stated_exit_code(code: int, said: ExitStatement | None) -> int:
    """Return the exit code of a rank, as `Process.returncode` has it, by its own statement.

    Python had nothing left to do but to end when torch crashed it (2.13 on gloo: one exit in 20).
    """
    crashed = code in (-signal.SIGABRT, -signal.SIGSEGV)
    return said.code if crashed and said is not None and said.code is not None else code


def add_exit_reason(seen: RankExit, said: ExitStatement | None, *, is_command: bool) -> RankExit:
    """Return the exit record with why the rank left, based on the rank's own statement.

    A rank that left its step loop as requested has left, however its process ended after that. For
    a plain command, only the exit code is known. A rank that calls a function, or has called
    `attach()`, must report that it reached its end: exit code 0 alone is not enough.
    """
    known = replace(seen, reason=_find_exit_reason(seen, said, is_command=is_command))
    if said is None:
        return known
    counted = said.total is not None and known.reason is ExitReason.returned
    return replace(
        known,
        kept=said.kept,
        told_by=said.told_by,
        told_signal=said.signal,
        step=said.step if counted or said.step is not None else seen.step,
        total=said.total,
    )


def _find_exit_reason(seen: RankExit, said: ExitStatement | None, *, is_command: bool) -> ExitReason:
    if said is not None and said.reason is ExitReason.left:
        return ExitReason.left
    if seen.signal is not None:
        return ExitReason.killed
    if seen.exception is not None:
        return ExitReason.raised
    if said is None and is_command:
        return _OF_COMMANDS.get(seen.code, ExitReason.exited)
    return ExitReason.exited if said is None or seen.code != 0 else said.reason


_OF_COMMANDS: Mapping[int | None, ExitReason] = {0: ExitReason.ended, LEFT_CODE: ExitReason.left}


def describe_early_return(exits: Sequence[RankExit]) -> str:
    """Return after how many steps ranks returned, and of how many; empty if all steps were done."""
    early = [
        (0 if exit_.step is None else exit_.step + 1, exit_.total)
        for exit_ in exits
        if exit_.reason is ExitReason.returned and exit_.total is not None
    ]
    done, total = min(early, default=(0, 0))
    return f"returned at step {done} of {total}" if done < total else ""


def find_last_done_step(exits: Sequence[RankExit], begun: int | None) -> int | None:
    """Return the last step of a round that was done: the last that began, unless ranks left it."""
    done = [exit_.step for exit_ in exits if exit_.reason is ExitReason.returned and exit_.step is not None]
    return min([begun, *done]) if begun is not None else None


def build_unasked_leave_failure(exits: Sequence[RankExit], step: int | None) -> Failure:
    """Return the failure of ranks that left although the attempt was not asked to end."""
    left = [exit_ for exit_ in exits if exit_.reason is ExitReason.left]
    first = min(left, key=lambda one: (_HEARD.index(one.told_by), one.rank))
    words = f"rank {first.rank} {_describe_leave_request(first)}, but the run was not asked to end"
    if any(exit_.kept is StateKept.unsaved for exit_ in left):
        words += "; its state could not be saved"
    elif first.kept is StateKept.saved:
        words += "; its state was saved"
    return Failure(
        cause=Cause.left, message=words, rank=first.rank, node=first.node, step=step, signature=Cause.left
    )


_HEARD = (ToldBy.signal, ToldBy.supervisor, ToldBy.peer, None)


def _describe_leave_request(exit_: RankExit) -> str:
    if exit_.told_signal is not None:
        return f"was asked to leave by {exit_.told_signal}"
    if exit_.told_by is None:
        return f"ended with exit code {exit_.code}: start it again"
    return f"was asked to leave by the {exit_.told_by}"


def build_unsaved_state_failure(exits: Sequence[RankExit], step: int | None) -> Failure:
    """Return the failure of ranks that returned without their registered state being saved."""
    first = next(exit_ for exit_ in exits if exit_.kept is StateKept.unsaved)
    return Failure(
        cause=Cause.unsaved,
        message=f"rank {first.rank} finished, but its registered state could not be saved",
        rank=first.rank,
        node=first.node,
        step=step,
        signature=Cause.unsaved,
    )


def find_rank_that_failed_first(exits: Sequence[RankExit]) -> RankExit | None:
    """Return the rank that failed first, None if none failed by itself.

    The others usually fail as a consequence (a broken connection, our own SIGTERM): a rank that
    lost a connection is never guilty if another one failed differently. The order is that of the
    exceptions' own times, because the peers of a raising rank may be gone before it has left
    Python. Only its agent sees the end of a killed rank, a little after its peers felt it; so the
    killed rank comes first if the times are close.
    """
    failed = [exit_ for exit_ in exits if exit_.failed and not exit_.stopped]
    return min(failed, key=_first_failure_sort_key, default=None)


def _first_failure_sort_key(exit_: RankExit) -> tuple[bool, datetime]:
    at = exit_.at or _LAST
    killed = exit_.signal in FROM_OUTSIDE and exit_.exception is None
    felt = classify_rank_exit(exit_) is Cause.communication
    return felt, at - _FELT_EARLIER if killed else at


def find_first_failure(exits: Sequence[RankExit]) -> Failure | None:
    """Return the failure that the exit records show, None if there is none."""
    guilty = find_rank_that_failed_first(exits)
    if guilty is None:
        return None
    return Failure(
        cause=classify_rank_exit(guilty),
        message=_describe_rank_exit(guilty),
        rank=guilty.rank,
        node=guilty.node,
        step=guilty.step,
        traceback=guilty.traceback,
        signature=compute_failure_signature(guilty),
    )


def _describe_rank_exit(exit_: RankExit) -> str:
    if exit_.exception is not None:
        return f"{exit_.exception}: {exit_.message}"
    if exit_.signal is not None:
        evidence = f" ({exit_.oom})" if exit_.oom else ""
        return f"rank {exit_.rank} was killed by {exit_.signal}{evidence}"
    if exit_.code == 0:
        return (
            f"rank {exit_.rank} ended with exit code 0 before it had finished "
            "(sys.exit or os._exit inside the entry point; return from it instead)"
        )
    said = f"; it printed last:\n{exit_.message}" if exit_.message else ""
    return f"rank {exit_.rank} ended with exit code {exit_.code}{said}"
