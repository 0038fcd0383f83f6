"""What to do when a round has ended. Pure: no clock, no environment, no file, no process.

Chooses between a new round, a new attempt and the end, and names the failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from hpckit.model.failure import Cause, Failure, RankExit, Trait, shell_exit_code
from hpckit.model.launch import Recovery
from hpckit.model.parallel.layout import describe_ranks_in_layout
from hpckit.model.run import PRUNED
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.recovery.boundary import (
    build_drain_failure,
    build_resize_failure,
    build_straggler_failure,
    decide_on_drain,
    decide_on_resize,
    decide_on_straggler,
    describe_resize,
)
from hpckit.planning.recovery.ends import (
    RoundOutcome,
    build_unasked_leave_failure,
    build_unsaved_state_failure,
    describe_early_return,
    find_first_failure,
    find_round_outcome,
)
from hpckit.planning.recovery.ledger import Ledger, explain_exhausted_restart_budget, would_more_have_helped
from hpckit.planning.recovery.node_choice import filter_out_nodes
from hpckit.planning.recovery.round_view import (
    NOTICE_CODE,
    Action,
    EndAttempt,
    NewRound,
    RoundView,
    Stay,
    StopNotice,
    build_end_with_new_attempt,
    build_round_ended_event,
)
from hpckit.values import replace

_COMPLETE = frozenset({RoundOutcome.completed, RoundOutcome.pruned})

_LOADS = 2
"""How many failures are charged to a checkpoint; by then it is tried last."""


_NOTICES = {Cause.preempted: "preempted", Cause.time_limit: "the time limit was about to end the job"}


def decide_after_round(view: RoundView, policy: Recovery, past: Ledger) -> Action:
    """Return what follows an ended round; `past` is what happened before it.

    A new round if enough nodes are available, otherwise a new attempt, otherwise the end. In all
    cases the budgets of `policy` are those of the whole run.
    """
    view = replace(view, exits=_mark_signalled_ranks_as_stopped(view))
    failure = view.failure or find_first_failure(view.exits)
    end = find_round_outcome(view.exits, told=view.cut_short or view.dismissed is not None)
    if failure is None and end in _COMPLETE:
        reason = PRUNED if end is RoundOutcome.pruned else describe_early_return(view.exits)
        return EndAttempt(state=RunState.completed, exit_code=0, reason=reason)
    if view.notice is not None:
        return decide_end_after_notice(view, view.notice, policy, past)
    # Slurm tells the ranks of a satellite, too: they may leave before they are asked to.
    asked = view.cut_short or view.resizing
    if failure is None and view.dismissed is None and end is RoundOutcome.left and asked:
        return _decide_after_ranks_left_nodes(view, policy, past)
    if failure is not None and _did_growth_cause_failure(view, failure):
        return _build_round_undoing_growth(view, failure)
    failure = _blame_loaded_checkpoint(view, failure or _build_failure_without_failed_rank(view, end), past)
    if failure.rank is not None:
        failure = replace(failure, place=describe_ranks_in_layout((failure.rank,), view.layout))
    ledger = past.after_round(build_round_ended_event(view, failure, RoundAction.end), view.attempt)
    left_out = _list_nodes_to_avoid(view, policy, ledger)
    spent = explain_exhausted_restart_budget(ledger, failure, policy, left_out)
    if spent is not None:
        words = (failure.message, spent, view.growth.get(failure.cause, ""))
        return _build_failed_attempt_end(view, replace(failure, message="; ".join(filter(None, words))))
    return _decide_restart(view, failure, policy, ledger, left_out)


def _mark_signalled_ranks_as_stopped(view: RoundView) -> Sequence[RankExit]:
    """Return the exits; a rank that a dismissed notice killed counts as stopped, not as failed."""
    if view.dismissed is None:
        return view.exits
    name = view.dismissed.signal
    dead = [replace(exit_, signal=name, stopped=True) for exit_ in view.exits]
    return [
        victim if name == exit_.signal or exit_.code == shell_exit_code(victim) else exit_
        for exit_, victim in zip(view.exits, dead, strict=True)
    ]


def explain_using_unhealthy_nodes(view: RoundView, policy: Recovery, past: Ledger) -> str | None:
    """Return why a round starts on its unhealthy nodes after all; None if it leaves them out.

    `view.failure` is the one that would be recorded. No other nodes stand, and a new attempt cannot
    be asked for, or was and got these nodes again; or the policy allows no more of this.
    """
    bad = past.list_nodes_failing_too_often(policy, view.at) | view.unhealthy.keys()
    if len(filter_out_nodes(view.standing, bad)) < view.fewest and _would_new_attempt_keep_bad_nodes(
        view, bad, past
    ):
        return "the run can have no other nodes"
    if view.failure is None:
        return None
    ledger = past.after_round(build_round_ended_event(view, view.failure, RoundAction.end), view.attempt)
    spent = explain_exhausted_restart_budget(ledger, view.failure, policy)
    return "recovery.restarts.unhealthy is 0" if spent == "" else spent


def _did_growth_cause_failure(view: RoundView, failure: Failure) -> bool:
    """Whether the first round of a larger size failed before its first step, on present nodes.

    A batch has too few rows then, or the new nodes lack what the others have.
    """
    stands = bool(view.grown_from) and {*view.grown_from} <= {*view.standing}
    elsewhere = failure.cause.has_trait(Trait.before_loading) or failure.cause is Cause.launcher_lost
    return stands and view.first_step is None and not elsewhere


def _build_round_undoing_growth(view: RoundView, failure: Failure) -> NewRound:
    words = f"{failure.message}; back {describe_resize(view, view.grown_from)}"
    because = replace(failure, cause=Cause.resized, message=words, signature=Cause.resized)
    return NewRound(because=because, nodes=view.grown_from, undone=True)


def _build_failure_without_failed_rank(view: RoundView, end: RoundOutcome) -> Failure:
    if view.dismissed is not None:
        return Failure(
            cause=Cause.left,
            message=f"{view.dismissed.signal} was sent to its processes, and the job runs on",
            step=view.step,
            signature=Cause.left,
        )
    if end is RoundOutcome.left:
        return build_unasked_leave_failure(view.exits, view.step)
    if end is RoundOutcome.unsaved:
        return build_unsaved_state_failure(view.exits, view.step)
    return Failure(cause=Cause.unknown, message="all ranks were stopped, and the reason is unknown")


def _blame_loaded_checkpoint(view: RoundView, failure: Failure, past: Ledger) -> Failure:
    """Attribute a failure to the checkpoint that was being loaded, while others can be tried."""
    load = view.load
    if load is None or not load.others or view.first_step is not None:
        return failure
    if (
        failure.cause.has_trait(Trait.before_loading)
        or past.count_checkpoint_load_failures(load.checkpoint) >= _LOADS
    ):
        return failure
    words = f"{failure.message}; while the checkpoint {load.checkpoint} was loaded"
    return replace(failure, message=words, checkpoint=load.checkpoint)


def _decide_after_ranks_left_nodes(view: RoundView, policy: Recovery, past: Ledger) -> Action:
    """Return what follows if ranks left their nodes for others.

    The drain may be over by now, or the spare node lost.
    """
    for change in (decide_on_drain, decide_on_straggler, decide_on_resize):
        action = change(view, policy, past)
        if not isinstance(action, Stay):
            return action
    slow = build_straggler_failure(view)
    failure = build_drain_failure(view) if slow.node is None else slow
    if failure.node is None and view.resizing:
        failure = build_resize_failure(view)
    ledger = past.after_round(build_round_ended_event(view, failure, RoundAction.end), view.attempt)
    return _decide_restart(view, failure, policy, ledger, _list_nodes_to_avoid(view, policy, ledger))


def _list_nodes_to_avoid(view: RoundView, policy: Recovery, ledger: Ledger) -> frozenset[str]:
    """Return the nodes to avoid from now on; none if no other nodes are available."""
    bad = ledger.list_nodes_failing_too_often(policy, view.at) | view.unhealthy.keys()
    enough = len(filter_out_nodes(view.standing, bad)) >= view.fewest
    return bad if enough or not _would_new_attempt_keep_bad_nodes(view, bad, ledger) else frozenset()


def _would_new_attempt_keep_bad_nodes(view: RoundView, bad: frozenset[str], past: Ledger) -> bool:
    """Whether a new attempt would not get rid of the bad ones of a round's nodes."""
    here = bad.intersection(view.members)
    return not view.requeues or (bool(here) and here <= past.kept)


def _decide_restart(
    view: RoundView, failure: Failure, policy: Recovery, ledger: Ledger, left_out: frozenset[str]
) -> Action:
    """Return a new round if possible, otherwise a new attempt, otherwise the end."""
    good = filter_out_nodes(view.standing, left_out)
    # The present allocation has no more memory.
    grow = _should_ask_for_more(view, failure.cause, ledger)
    if len(good) >= view.fewest and not grow:
        return NewRound(
            because=failure,
            nodes=view.choose_next_nodes(good, view.draining),
            pause=_compute_restart_pause(policy, ledger),
        )
    if not view.requeues:
        return _build_failed_attempt_end(view, failure)
    return build_end_with_new_attempt(failure, _exit_code_of_failure(view, failure), left_out, grow=grow)


def _should_ask_for_more(view: RoundView, cause: Cause, ledger: Ledger) -> bool:
    """Whether the next attempt asks for more of what ran out, and may; the cause is the ledger's latest."""
    possible = view.requeues and view.growth.get(cause) == ""
    return possible and would_more_have_helped(ledger, cause, saved=view.saved)


def _compute_restart_pause(policy: Recovery, ledger: Ledger) -> timedelta:
    count = len(ledger.failures_without_progress)
    if count < 2:  # noqa: PLR2004  # there is no pause after the first failure
        return timedelta()
    return timedelta(seconds=min(policy.backoff_s * 2 ** (count - 2), policy.max_backoff_s))


def _build_failed_attempt_end(view: RoundView, failure: Failure) -> EndAttempt:
    return EndAttempt(state=RunState.failed, exit_code=_exit_code_of_failure(view, failure), failure=failure)


def decide_end_after_notice(
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
    ledger = past.after_round(build_round_ended_event(view, failure, RoundAction.end), view.attempt)
    grow, more = _should_ask_for_more(view, failure.cause, ledger), view.growth.get(failure.cause)
    # A run that saves no state would only reach the same time limit again.
    wanted = left_alone or grow or (notice.cause is Cause.time_limit and view.saved)
    if not (wanted and view.requeues):
        if left_alone:
            more = "recovery.requeue is off, and Slurm does not restart it"
        message = "; ".join(filter(None, (failure.message, more)))
        failure = replace(failure, message=message)
        return EndAttempt(state=RunState.interrupted, exit_code=NOTICE_CODE, failure=failure)
    spent = explain_exhausted_restart_budget(ledger, failure, policy)
    if spent is None:
        return build_end_with_new_attempt(
            failure, NOTICE_CODE, ledger.list_nodes_failing_too_often(policy, view.at), grow=grow
        )
    message = "; ".join(filter(None, (failure.message, spent, more)))
    return EndAttempt(
        state=RunState.failed if spent else RunState.interrupted,
        exit_code=NOTICE_CODE,
        failure=replace(failure, message=message),
    )


def _exit_code_of_failure(view: RoundView, failure: Failure) -> int:
    guilty = [exit_ for exit_ in view.exits if exit_.rank == failure.rank]
    return shell_exit_code(guilty[0]) if guilty else 1
