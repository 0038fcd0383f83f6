"""What to do when a round has ended. Pure: no clock, no environment, no file, no process.

Chooses between a new round, a new attempt and the end, and names the failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from hpckit.model.failure import Cause, Failure, RankExit, Trait, shell_code
from hpckit.model.launch import Recovery
from hpckit.model.parallel.layout import rank_place
from hpckit.model.run import PRUNED
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.recovery.boundary import (
    describe_resize,
    drain_failure,
    on_drain,
    on_resize,
    on_straggler,
    resize_failure,
    straggler_failure,
)
from hpckit.planning.recovery.ends import (
    RoundOutcome,
    first_failure,
    left_unasked,
    left_unsaved,
    read_end,
    returned_early,
)
from hpckit.planning.recovery.ledger import Ledger, exhausted
from hpckit.planning.recovery.node_choice import without
from hpckit.planning.recovery.round_view import (
    NOTICE_CODE,
    Action,
    EndAttempt,
    NewRound,
    RoundView,
    Stay,
    StopNotice,
    new_attempt,
    round_ended,
)
from hpckit.values import replace

_COMPLETE = frozenset({RoundOutcome.completed, RoundOutcome.pruned})

_LOADS = 2
"""How many failures are charged to a checkpoint; by then it is tried last."""


_NOTICES = {
    Cause.preempted: "preempted",
    Cause.time_limit: "the time limit was about to end the job",
}


def decide(view: RoundView, policy: Recovery, past: Ledger) -> Action:
    """Return what follows an ended round; `past` is what happened before it.

    A new round if enough nodes are available, otherwise a new attempt, otherwise the end. In all
    cases the budgets of `policy` are those of the whole run.
    """
    view = replace(view, exits=_without_victims(view))
    failure = view.failure or first_failure(view.exits)
    end = read_end(view.exits, told=view.cut_short or view.dismissed is not None)
    if failure is None and end in _COMPLETE:
        reason = PRUNED if end is RoundOutcome.pruned else returned_early(view.exits)
        return EndAttempt(state=RunState.completed, exit_code=0, reason=reason)
    if view.notice is not None:
        return end_by_notice(view, view.notice, policy, past)
    # Slurm tells the ranks of a satellite, too: they may leave before they are asked to.
    asked = view.cut_short or view.resizing
    if failure is None and view.dismissed is None and end is RoundOutcome.left and asked:
        return _left_for_others(view, policy, past)
    if failure is not None and _fails_because_grown(view, failure):
        return _undone(view, failure)
    failure = _with_checkpoint(view, failure or _failure_of(view, end), past)
    if failure.rank is not None:
        failure = replace(failure, place=rank_place((failure.rank,), view.layout))
    ledger = past.after(round_ended(view, failure, RoundAction.end), view.attempt)
    left_out = _left_out(view, policy, ledger)
    spent = exhausted(ledger, failure, policy, left_out)
    if spent is not None:
        message = f"{failure.message}; {spent}" if spent else failure.message
        return _failed(view, replace(failure, message=message))
    return _restart(view, failure, policy, ledger, left_out)


def _without_victims(view: RoundView) -> Sequence[RankExit]:
    """Return the exits; a rank that a dismissed notice killed counts as stopped, not as failed."""
    if view.dismissed is None:
        return view.exits
    name = view.dismissed.signal
    dead = [replace(exit_, signal=name, stopped=True) for exit_ in view.exits]
    return [
        victim if name == exit_.signal or exit_.code == shell_code(victim) else exit_
        for exit_, victim in zip(view.exits, dead, strict=True)
    ]


def why_stay(view: RoundView, policy: Recovery, past: Ledger) -> str | None:
    """Return why a round starts on its unhealthy nodes after all; None if it leaves them out.

    `view.failure` is the one that would be recorded. No other nodes stand, and a new attempt cannot
    be asked for, or was and got these nodes again; or the policy allows no more of this.
    """
    bad = past.excluded(policy, view.at) | view.unhealthy.keys()
    if len(without(view.standing, bad)) < view.fewest and _bound_to(view, bad, past):
        return "the run can have no other nodes"
    if view.failure is None:
        return None
    ledger = past.after(round_ended(view, view.failure, RoundAction.end), view.attempt)
    spent = exhausted(ledger, view.failure, policy)
    return "recovery.restarts.unhealthy is 0" if spent == "" else spent


def _fails_because_grown(view: RoundView, failure: Failure) -> bool:
    """Whether the first round of a larger size failed before its first step, on nodes that stand.

    A batch has too few rows then, or the new nodes lack what the others have.
    """
    stands = bool(view.grown_from) and {*view.grown_from} <= {*view.standing}
    elsewhere = failure.cause.has(Trait.before_loading) or failure.cause is Cause.launcher_lost
    return stands and view.first_step is None and not elsewhere


def _undone(view: RoundView, failure: Failure) -> NewRound:
    """Return the round that continues in the size that worked."""
    words = f"{failure.message}; back {describe_resize(view, view.grown_from)}"
    because = replace(failure, cause=Cause.resized, message=words, signature=Cause.resized)
    return NewRound(because=because, nodes=view.grown_from, undone=True)


def _failure_of(view: RoundView, end: RoundOutcome) -> Failure:
    """Return the failure of a round that was not ended by a failed rank."""
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
    """Attribute a failure to the checkpoint that was being loaded, while others can be tried."""
    load = view.load
    if load is None or not load.others or view.first_step is not None:
        return failure
    if failure.cause.has(Trait.before_loading) or past.loads_of(load.checkpoint) >= _LOADS:
        return failure
    words = f"{failure.message}; while the checkpoint {load.checkpoint} was loaded"
    return replace(failure, message=words, checkpoint=load.checkpoint)


def _left_for_others(view: RoundView, policy: Recovery, past: Ledger) -> Action:
    """Return what follows if ranks left their nodes for others.

    The drain may be over by now, or the spare node lost.
    """
    for change in (on_drain, on_straggler, on_resize):
        action = change(view, policy, past)
        if not isinstance(action, Stay):
            return action
    slow = straggler_failure(view)
    failure = drain_failure(view) if slow.node is None else slow
    if failure.node is None and view.resizing:
        failure = resize_failure(view)
    ledger = past.after(round_ended(view, failure, RoundAction.end), view.attempt)
    return _restart(view, failure, policy, ledger, _left_out(view, policy, ledger))


def _left_out(view: RoundView, policy: Recovery, ledger: Ledger) -> frozenset[str]:
    """Return the nodes to avoid from now on; none if no other nodes are available."""
    bad = ledger.excluded(policy, view.at) | view.unhealthy.keys()
    enough = len(without(view.standing, bad)) >= view.fewest
    return bad if enough or not _bound_to(view, bad, ledger) else frozenset()


def _bound_to(view: RoundView, bad: frozenset[str], past: Ledger) -> bool:
    """Whether a new attempt would not get rid of the bad ones of a round's nodes."""
    here = bad.intersection(view.members)
    return not view.requeues or (bool(here) and here <= past.kept)


def _restart(
    view: RoundView,
    failure: Failure,
    policy: Recovery,
    ledger: Ledger,
    left_out: frozenset[str],
) -> Action:
    """Return a new round if possible, otherwise a new attempt, otherwise the end."""
    good = without(view.standing, left_out)
    if len(good) >= view.fewest:
        return NewRound(
            because=failure,
            nodes=view.placed(good, view.draining),
            pause=_pause(policy, ledger),
        )
    if not view.requeues:
        return _failed(view, failure)
    return new_attempt(failure, _exit_code(view, failure), left_out)


def _pause(policy: Recovery, ledger: Ledger) -> timedelta:
    count = len(ledger.without_progress)
    if count < 2:  # noqa: PLR2004  # there is no pause after the first failure
        return timedelta()
    return timedelta(seconds=min(policy.backoff_s * 2 ** (count - 2), policy.max_backoff_s))


def _failed(view: RoundView, failure: Failure) -> EndAttempt:
    return EndAttempt(state=RunState.failed, exit_code=_exit_code(view, failure), failure=failure)


def end_by_notice(
    view: RoundView, notice: StopNotice, policy: Recovery, past: Ledger
) -> EndAttempt:
    """Return how an attempt ends that is being stopped: asked for again by itself, or not.

    Never after a cancel, and not where whatever stopped it starts it again.
    """
    if view.cancelled:
        return EndAttempt(state=RunState.cancelled, exit_code=NOTICE_CODE)
    failure = Failure(
        cause=notice.cause,
        message=_NOTICES.get(notice.cause, f"asked to stop by {notice.signal}"),
        step=view.step,
        signature=notice.cause,
    )
    left_alone = notice.cause is Cause.preempted and not notice.restarts
    # A run that saves no state would only reach the same time limit again.
    wanted = left_alone or (notice.cause is Cause.time_limit and view.saved)
    if not (wanted and view.requeues):
        if left_alone:
            message = f"{failure.message}; recovery.requeue is off, and Slurm starts it no more"
            failure = replace(failure, message=message)
        return EndAttempt(state=RunState.interrupted, exit_code=NOTICE_CODE, failure=failure)
    ledger = past.after(round_ended(view, failure, RoundAction.end), view.attempt)
    spent = exhausted(ledger, failure, policy)
    if spent is None:
        return new_attempt(failure, NOTICE_CODE, ledger.excluded(policy, view.at))
    message = f"{failure.message}; {spent}" if spent else failure.message
    return EndAttempt(
        state=RunState.failed if spent else RunState.interrupted,
        exit_code=NOTICE_CODE,
        failure=replace(failure, message=message),
    )


def _exit_code(view: RoundView, failure: Failure) -> int:
    guilty = [exit_ for exit_ in view.exits if exit_.rank == failure.rank]
    return shell_code(guilty[0]) if guilty else 1
