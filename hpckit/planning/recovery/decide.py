"""What to do when a round has ended. Pure: no clock, no environment, no file, no process.

Responsible for the choice between a new round, a new attempt and the end, and for naming the
failure; it must not carry anything out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hpckit.model import events
from hpckit.model.failure import Cause, Failure, RankExit, shell_code
from hpckit.model.launch import DrainPolicy, Recovery
from hpckit.model.run import PRUNED
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.recovery.ends import (
    RoundOutcome,
    first_failure,
    left_unasked,
    left_unsaved,
    read_end,
    returned_early,
)
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.node_choice import placed, without

NOTICE_CODE = 143
"""Exit code of an attempt that was told to stop: 128 + SIGTERM."""

_COMPLETE = frozenset({RoundOutcome.completed, RoundOutcome.pruned})
_SENT_AWAY = frozenset({Cause.preempted, Cause.drained, Cause.notice, Cause.left})
"""Ends that say nothing of the run, however alike they are."""


_NOT_OF_A_LOAD = frozenset({Cause.node_lost, Cause.agents_missing, Cause.left})
_LOADS = 2
"""So many deaths a checkpoint is charged with: by then it is tried last."""

_NOTICES = {
    Cause.preempted: "preempted",
    Cause.time_limit: "the time limit was about to end the job",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNotice:
    """That the attempt will be stopped: the signal that said so, and why, as far as is known."""

    signal: str
    cause: Cause = Cause.notice


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoad:
    """The checkpoint that a round began to load; `others` are left that no run has died of."""

    checkpoint: str
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """One ended round: its exit records, and what else is known of its end.

    `saved` is whether the attempt has saved state; `load` what the round began from, if anything;
    `dismissed` a notice that the ranks were given and that turned out to be none; `cut_short`
    whether ranks were still running when they were told to leave; `cancelled` whether the user
    asked for the end; `failure` is set where the round ended for another reason than its ranks.
    `members` are the nodes it ran on,
    `standing` those that are there now, spares included, in the allocation's order; `ran` is how
    long the round lasted, `silent` for how long nothing had been heard of what made it end;
    `draining` says which nodes are being drained, and why; `wanted` and `fewest` how many nodes a
    round has, and must have. `requeues` is whether a new attempt can be asked for.
    """

    round: int
    at: datetime
    exits: Sequence[RankExit]
    attempt: int = 1
    first_step: int | None = None
    step: int | None = None
    saved: bool = False
    notice: StopNotice | None = None
    dismissed: StopNotice | None = None
    load: CheckpointLoad | None = None
    cut_short: bool = False
    cancelled: bool = False
    failure: Failure | None = None
    members: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()
    ran: timedelta = timedelta()
    silent: timedelta = timedelta()
    draining: Mapping[str, str] = field(default_factory=dict)
    wanted: int = 1
    fewest: int = 1
    requeues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRound:
    """Start all ranks again on these nodes, inside the same attempt, after a pause."""

    because: Failure
    nodes: tuple[str, ...]
    pause: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    """End the attempt in this state, with this exit code.

    `again` asks for a new attempt, on other nodes than those `excluded`. `reason` says why a run
    completed before all was done.
    """

    state: RunState
    exit_code: int
    failure: Failure | None = None
    reason: str = ""
    again: bool = False
    excluded: tuple[str, ...] = ()


Action = NewRound | EndAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Let the round go on although a node of it is being drained, and why nothing else is done."""

    because: str


def decide(view: RoundView, policy: Recovery, past: Ledger) -> Action:
    """Return what follows an ended round; `past` is what happened before it.

    The ladder: a new round where enough nodes stand, else a new attempt, else the end. Whatever
    the rung, the budgets of `policy` are those of the whole run.
    """
    failure = view.failure or first_failure(view.exits)
    end = read_end(view.exits, told=view.cut_short)
    if failure is None and end in _COMPLETE:
        return _completed(view, end)
    if view.notice is not None:
        return _stopped(view, view.notice, policy, past)
    if failure is None and view.dismissed is None and end is RoundOutcome.left and view.cut_short:
        return _left_for_drain(view, policy, past)
    failure = _with_checkpoint(view, failure or _failure_of(view, end), past)
    ledger = past.after(round_ended(view, failure, RoundAction.end), view.attempt)
    left_out = _left_out(view, policy, ledger)
    spent = exhausted(ledger, failure, policy, left_out)
    if spent is not None:
        message = f"{failure.message}; {spent}" if spent else failure.message
        return _failed(view, replace(failure, message=message))
    return _restart(view, failure, policy, ledger, left_out)


def _completed(view: RoundView, end: RoundOutcome) -> EndAttempt:
    reason = PRUNED if end is RoundOutcome.pruned else returned_early(view.exits)
    return EndAttempt(state=RunState.completed, exit_code=0, reason=reason)


def _failure_of(view: RoundView, end: RoundOutcome) -> Failure:
    """Return the failure of a round that no rank of it failed."""
    if view.dismissed is not None:
        return Failure(
            cause=Cause.left,
            message=f"{view.dismissed.signal} was sent to its processes, and the job runs on",
            step=view.step,
            signature=Cause.left,
        )
    if end is RoundOutcome.left:
        return left_unasked(view.exits, view.step)
    if end is RoundOutcome.unsaved:
        return left_unsaved(view.exits, view.step)
    return Failure(cause=Cause.unknown, message="all ranks were stopped, and the reason is unknown")


def _with_checkpoint(view: RoundView, failure: Failure, past: Ledger) -> Failure:
    """Put a failure down to the checkpoint that was being loaded, while others can be tried."""
    load = view.load
    if load is None or not load.others or view.first_step is not None:
        return failure
    if failure.cause in _NOT_OF_A_LOAD or past.loads_of(load.checkpoint) >= _LOADS:
        return failure
    words = f"{failure.message}; while the checkpoint {load.checkpoint} was loaded"
    return replace(failure, message=words, checkpoint=load.checkpoint)


def on_drain(view: RoundView, policy: Recovery, past: Ledger) -> Action | Stay:
    """Return what follows from a drain of nodes that a round runs on, for which it has to leave.

    Slurm lets a job run on: nothing that would cost steps, or nodes without others for them, is
    done. A new round never has a node that is being drained, so that none is left twice for it.
    """
    failure = _drain(view)
    if failure.node is None:
        return Stay(because="none of its nodes is being drained now")
    if not view.saved:
        return Stay(because="nothing has been saved yet to continue from")
    ledger = past.after(round_ended(view, failure, RoundAction.end), view.attempt)
    excluded = ledger.excluded(policy)
    good = without(view.standing, excluded | view.draining.keys())
    if len(good) >= len(view.members):
        return NewRound(because=failure, nodes=placed(view.members, good, view.wanted))
    bound = _bound(view, failure, policy, ledger)
    if bound is not None:
        return Stay(because=f"no spare node can take over{bound}")
    return _again(failure, NOTICE_CODE, excluded)


def _bound(view: RoundView, failure: Failure, policy: Recovery, ledger: Ledger) -> str | None:
    """Return why a run does not leave for a drain without a spare, None where it does."""
    if policy.on_drain is not DrainPolicy.leave:
        return ""
    if not view.requeues:
        return ", and no new attempt can be asked for"
    spent = exhausted(ledger, failure, policy)
    return None if spent is None else f"; {spent or 'recovery.restarts.drained is 0'}"


def _drain(view: RoundView) -> Failure:
    """Return what to call it when a round leaves the nodes that are being drained."""
    nodes = {node: view.draining[node] for node in view.members if node in view.draining}
    said = [f"{node} is being drained ({why})".replace(" ()", "") for node, why in nodes.items()]
    return Failure(
        cause=Cause.drained,
        message=", ".join(said) or "the nodes that were draining are back in service",
        node=", ".join(nodes) or None,
        step=view.step,
        signature=Cause.drained,
    )


def _left_for_drain(view: RoundView, policy: Recovery, past: Ledger) -> Action:
    """Return what follows when ranks have left for a drain; it may be over, or the spare gone."""
    action = on_drain(view, policy, past)
    if not isinstance(action, Stay):
        return action
    failure = _drain(view)
    ledger = past.after(round_ended(view, failure, RoundAction.end), view.attempt)
    return _restart(view, failure, policy, ledger, _left_out(view, policy, ledger))


def round_ended(view: RoundView, failure: Failure | None, action: RoundAction) -> events.RoundEnded:
    """Return what is recorded of an ended round."""
    return events.RoundEnded(
        at=view.at,
        round=view.round,
        first_step=view.first_step,
        step=view.step,
        action=action,
        failure=failure,
        silent_s=round(view.silent.total_seconds(), 3),
    )


def attempt_ended(end: EndAttempt, at: datetime) -> events.AttemptEnded:
    """Return the final event on an attempt."""
    return events.AttemptEnded(
        at=at,
        state=end.state,
        exit_code=end.exit_code,
        failure=end.failure,
        reason=end.reason,
    )


def exhausted(
    ledger: Ledger, failure: Failure, policy: Recovery, left_out: frozenset[str] = frozenset()
) -> str | None:
    """Return why the latest failure, which is in the ledger, ends the run; None where not.

    Empty where the policy has no restart for such a failure at all: that needs no words.
    """
    if failure.checkpoint is not None:
        return None
    allowed = policy.restarts.get(failure.cause, 0)
    if allowed == 0:
        return ""
    count = 0 if failure.cause in _SENT_AWAY else ledger.repeated()
    if count >= policy.max_identical_failures:
        return f"the same failure {count} times without getting further"
    spent = ledger.spent(failure.cause, left_out)
    if spent > allowed:
        return (
            f"{spent} failures of this kind without getting further; "
            f"recovery.restarts.{failure.cause} is {allowed}"
        )
    return None


def _left_out(view: RoundView, policy: Recovery, ledger: Ledger) -> frozenset[str]:
    """Return the nodes to do without from now on; none where there is no other to be had."""
    bad = ledger.excluded(policy)
    good = [node for node in view.standing if node not in bad]
    return bad if len(good) >= view.fewest or view.requeues else frozenset()


def _restart(
    view: RoundView,
    failure: Failure,
    policy: Recovery,
    ledger: Ledger,
    left_out: frozenset[str],
) -> Action:
    """Return the lowest rung of the ladder that holds."""
    good = without(view.standing, left_out)
    if len(good) >= view.fewest:
        return NewRound(
            because=failure,
            nodes=placed(view.members, good, view.wanted, view.draining),
            pause=_pause(policy, ledger),
        )
    if not view.requeues:
        return _failed(view, failure)
    return _again(failure, _exit_code(view, failure), left_out)


def _again(failure: Failure, exit_code: int, excluded: frozenset[str]) -> EndAttempt:
    return EndAttempt(
        state=RunState.interrupted,
        exit_code=exit_code,
        failure=failure,
        again=True,
        excluded=tuple(sorted(excluded)),
    )


def _pause(policy: Recovery, ledger: Ledger) -> timedelta:
    count = len(ledger.without_progress)
    if count < 2:  # noqa: PLR2004  # the first failure is followed at once
        return timedelta()
    return timedelta(seconds=min(policy.backoff_s * 2 ** (count - 2), policy.max_backoff_s))


def _failed(view: RoundView, failure: Failure) -> EndAttempt:
    return EndAttempt(state=RunState.failed, exit_code=_exit_code(view, failure), failure=failure)


def _stopped(view: RoundView, notice: StopNotice, policy: Recovery, past: Ledger) -> EndAttempt:
    if view.cancelled:
        return EndAttempt(state=RunState.cancelled, exit_code=NOTICE_CODE)
    failure = Failure(
        cause=notice.cause,
        message=_NOTICES.get(notice.cause, f"asked to stop by {notice.signal}"),
        step=view.step,
        signature=notice.cause,
    )
    if notice.cause is not Cause.time_limit or not (view.requeues and view.saved):
        # Who stopped the attempt starts it again, where that was the intention; and a run that
        # keeps no state would only come to the same limit once more.
        return EndAttempt(state=RunState.interrupted, exit_code=NOTICE_CODE, failure=failure)
    ledger = past.after(round_ended(view, failure, RoundAction.end), view.attempt)
    spent = exhausted(ledger, failure, policy)
    if spent is None:
        return _again(failure, NOTICE_CODE, ledger.excluded(policy))
    message = f"{failure.message}; {spent}" if spent else failure.message
    return EndAttempt(
        state=RunState.failed if spent else RunState.interrupted,
        exit_code=NOTICE_CODE,
        failure=replace(failure, message=message),
    )


def _exit_code(view: RoundView, failure: Failure) -> int:
    guilty = [exit_ for exit_ in view.exits if exit_.rank == failure.rank]
    return shell_code(guilty[0]) if guilty else 1
