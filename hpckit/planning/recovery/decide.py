"""What to do when a round has ended. Pure: no clock, no environment, no file, no process.

Chooses between a new round, a new attempt and the end, and names the failure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hpckit.model import events
from hpckit.model.counted import counted
from hpckit.model.failure import Cause, Failure, RankExit, shell_code
from hpckit.model.launch import DrainPolicy, Recovery
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.naming import rank_place
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
from hpckit.planning.recovery.node_choice import RoundSizes, without

NOTICE_CODE = 143
"""Exit code of an attempt that was asked to stop: 128 + SIGTERM."""

_COMPLETE = frozenset({RoundOutcome.completed, RoundOutcome.pruned})
_SENT_AWAY = frozenset(
    {
        *(Cause.preempted, Cause.drained, Cause.straggler, Cause.resized),
        *(Cause.notice, Cause.left),
    }
)
"""Ends that reveal nothing about the run, even if they repeat."""


_NOT_OF_A_LOAD = frozenset({Cause.node_lost, Cause.agents_missing, Cause.left})
_LOADS = 2
"""How many failures are charged to a checkpoint; by then it is tried last."""

_NOT_OF_GROWTH = _NOT_OF_A_LOAD | {Cause.launcher_lost}

_NOTICES = {
    Cause.preempted: "preempted",
    Cause.time_limit: "the time limit was about to end the job",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNotice:
    """The notice that the attempt will be stopped: its signal, and its cause as far as known."""

    signal: str
    cause: Cause = Cause.notice


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoad:
    """The checkpoint that a round began to load; `others` are left that no run has failed on."""

    checkpoint: str
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """One ended round: its exit records, and what else is known about its end.

    `saved` is whether the attempt has saved state. `load` is what the round began from, if
    anything. `dismissed` is a notice that was passed to the ranks and turned out to be false.
    `cut_short` is whether ranks were still running when they were asked to leave. `cancelled` is
    whether the user requested the end. `failure` is set if the round did not end because of its
    ranks. `members` are the nodes it ran on, `standing` those that are available now, spares
    included, in the allocation's order. `ran` is how long the round lasted, `silent` how long there
    had been no sign of life from what ended it. `draining` holds the nodes that are being drained,
    with the reasons, `slow` those with stragglers, and what is said of them. `wanted` and `fewest`
    are how many nodes a round has, and must have; a replica takes `replica_nodes` of them.
    `fallback_nodes` are the numbers of nodes for which the user listed another layout.
    `resizing` is whether ranks were asked to leave because that number changed, `grown_from` are
    the members of the round before, if this one has more.
    `requeues` is whether a new attempt can be requested. `layout` is that of the round.
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
    slow: Mapping[str, str] = field(default_factory=dict)
    wanted: int = 1
    fewest: int = 1
    replica_nodes: int = 1
    fallback_nodes: tuple[int, ...] = ()
    resizing: bool = False
    grown_from: tuple[str, ...] = ()
    requeues: bool = False
    layout: Layout | None = None

    @property
    def sizes(self) -> RoundSizes:
        """How many nodes the next round may have."""
        return RoundSizes(
            wanted=self.wanted,
            fewest=self.fewest,
            replica_nodes=self.replica_nodes,
            fallback=self.fallback_nodes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRound:
    """Start all ranks again on these nodes, inside the same attempt, after a pause.

    `undone` is whether the run gives up growing, as its larger round failed at once.
    """

    because: Failure
    nodes: tuple[str, ...]
    pause: timedelta = timedelta()
    undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    """End the attempt in this state, with this exit code.

    `again` asks for a new attempt, without the nodes `excluded`. `reason` says why a run completed
    early.
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
    """Let the round continue although a node of it is being drained; `because` is the reason."""

    because: str


def decide(view: RoundView, policy: Recovery, past: Ledger) -> Action:
    """Return what follows an ended round; `past` is what happened before it.

    A new round if enough nodes are available, otherwise a new attempt, otherwise the end. In all
    cases the budgets of `policy` are those of the whole run.
    """
    failure = view.failure or first_failure(view.exits)
    end = read_end(view.exits, told=view.cut_short)
    if failure is None and end in _COMPLETE:
        return _completed(view, end)
    if view.notice is not None:
        return _stopped(view, view.notice, policy, past)
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


def _fails_because_grown(view: RoundView, failure: Failure) -> bool:
    """Whether the first round of a larger size failed before its first step, on nodes that stand.

    A batch has too few rows then, or the new nodes lack what the others have.
    """
    stands = bool(view.grown_from) and {*view.grown_from} <= {*view.standing}
    return stands and view.first_step is None and failure.cause not in _NOT_OF_GROWTH


def _undone(view: RoundView, failure: Failure) -> NewRound:
    """Return the round that continues in the size that worked."""
    words = f"{failure.message}; back {_change(view, view.grown_from)}"
    because = replace(failure, cause=Cause.resized, message=words, signature=Cause.resized)
    return NewRound(because=because, nodes=view.grown_from, undone=True)


def _completed(view: RoundView, end: RoundOutcome) -> EndAttempt:
    reason = PRUNED if end is RoundOutcome.pruned else returned_early(view.exits)
    return EndAttempt(state=RunState.completed, exit_code=0, reason=reason)


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
    if failure.cause in _NOT_OF_A_LOAD or past.loads_of(load.checkpoint) >= _LOADS:
        return failure
    words = f"{failure.message}; while the checkpoint {load.checkpoint} was loaded"
    return replace(failure, message=words, checkpoint=load.checkpoint)


def on_drain(view: RoundView, policy: Recovery, past: Ledger) -> Action | Stay:
    """Return what to do when nodes that a round runs on are being drained.

    Slurm lets the job continue, so the round does not leave if that would lose steps, or nodes that
    cannot be replaced. The new round has no node that is being drained, so no node is left twice
    for one drain.
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
        return NewRound(because=failure, nodes=_placed(view, good))
    bound = _bound(view, failure, policy, ledger)
    if bound is not None:
        return Stay(because=f"no spare node can take over{bound}")
    return _again(failure, NOTICE_CODE, excluded)


def _bound(view: RoundView, failure: Failure, policy: Recovery, ledger: Ledger) -> str | None:
    """Return why a run without a spare node ignores a drain; None if it leaves."""
    if policy.on_drain is not DrainPolicy.leave:
        return ""
    if not view.requeues:
        return ", and no new attempt can be asked for"
    spent = exhausted(ledger, failure, policy)
    return None if spent is None else f"; {spent or 'recovery.restarts.drained is 0'}"


def _drain(view: RoundView) -> Failure:
    """Return the failure recorded when a round leaves the nodes that are being drained."""
    nodes = {node: view.draining[node] for node in view.members if node in view.draining}
    said = [f"{node} is being drained ({why})".replace(" ()", "") for node, why in nodes.items()]
    return Failure(
        cause=Cause.drained,
        message=", ".join(said) or "the nodes that were draining are back in service",
        node=", ".join(nodes) or None,
        step=view.step,
        signature=Cause.drained,
    )


def on_straggler(view: RoundView, policy: Recovery, past: Ledger) -> NewRound | Stay:
    """Return what to do when nodes that a round runs on are slower than the others.

    Only spare nodes take over: a slow run is better than one that waits in the queue again.
    """
    failure = _slowness(view)
    if failure.node is None:
        return Stay(because="it is not among the nodes of this round")
    if not view.saved:
        return Stay(because="nothing has been saved yet to continue from")
    ledger = past.after(round_ended(view, failure, RoundAction.end), view.attempt)
    spent = exhausted(ledger, failure, policy)
    if spent is not None:
        return Stay(because=spent or "recovery.restarts.straggler is 0")
    unwelcome = ledger.excluded(policy) | view.draining.keys() | view.slow.keys()
    good = without(view.standing, unwelcome)
    if len(good) < len(view.members):
        return Stay(because="no spare node can take over")
    return NewRound(because=failure, nodes=_placed(view, good))


def _slowness(view: RoundView) -> Failure:
    """Return the failure recorded when a round leaves its slow nodes."""
    nodes = {node: view.slow[node] for node in view.members if node in view.slow}
    return Failure(
        cause=Cause.straggler,
        message="; ".join(nodes.values()),
        node=", ".join(nodes) or None,
        step=view.step,
        signature=Cause.straggler,
    )


def on_resize(view: RoundView, policy: Recovery, past: Ledger) -> NewRound | Stay:
    """Return what to do when a round may have more or fewer replicas, or its nodes are leaving.

    Replicas that keep all of their nodes are not touched, unless one of these is being drained. No
    new node is one that failed too often, is slow or is being drained.
    """
    shy = past.excluded(policy) | view.draining.keys() | view.slow.keys()
    good = [node for node in view.standing if node in view.members or node not in shy]
    nodes = _placed(view, good, view.draining)
    if nodes == view.members:
        return Stay(because="its nodes are all that it can use")
    if len(nodes) < view.fewest or not nodes:
        return Stay(because=f"{len(nodes)} of its nodes would be left, and it needs {view.fewest}")
    if not view.saved and {*view.members} <= {*view.standing}:
        return Stay(because="nothing has been saved yet to continue from")
    return NewRound(because=_resizing(view, nodes), nodes=nodes)


def _resizing(view: RoundView, nodes: Sequence[str] = ()) -> Failure:
    """Return the failure recorded when a round leaves to continue in another size."""
    gone = [node for node in view.members if node not in view.standing]
    words = _change(view, nodes) if nodes else "to change its size"
    if gone:
        words += f": {', '.join(gone)} left with their satellite job"
    return Failure(cause=Cause.resized, message=words, step=view.step, signature=Cause.resized)


def _change(view: RoundView, nodes: Sequence[str]) -> str:
    """Return in words how the size changes; in nodes if one of the rounds has no whole replicas."""
    before, after = len(view.members), len(nodes)
    if before % view.replica_nodes or after % view.replica_nodes:
        return f"from {before} to {counted(after, 'node')}"
    whole = view.replica_nodes
    return f"from {before // whole} to {counted(after // whole, 'replica')}"


def _left_for_others(view: RoundView, policy: Recovery, past: Ledger) -> Action:
    """Return what follows if ranks left their nodes for others.

    The drain may be over by now, or the spare node lost.
    """
    for change in (on_drain, on_straggler, on_resize):
        action = change(view, policy, past)
        if not isinstance(action, Stay):
            return action
    slow = _slowness(view)
    failure = _drain(view) if slow.node is None else slow
    if failure.node is None and view.resizing:
        failure = _resizing(view)
    ledger = past.after(round_ended(view, failure, RoundAction.end), view.attempt)
    return _restart(view, failure, policy, ledger, _left_out(view, policy, ledger))


def round_ended(view: RoundView, failure: Failure | None, action: RoundAction) -> events.RoundEnded:
    """Return the record of an ended round."""
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
    """Return the final event of an attempt."""
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
    """Return why the latest failure, which is in the ledger, ends the run; None if it does not.

    Empty if the policy allows no restart for such a failure: that needs no explanation.
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
    """Return the nodes to avoid from now on; none if no other nodes are available."""
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
    """Return a new round if possible, otherwise a new attempt, otherwise the end."""
    good = without(view.standing, left_out)
    if len(good) >= view.fewest:
        return NewRound(
            because=failure,
            nodes=_placed(view, good, view.draining),
            pause=_pause(policy, ledger),
        )
    if not view.requeues:
        return _failed(view, failure)
    return _again(failure, _exit_code(view, failure), left_out)


def _placed(
    view: RoundView, good: Sequence[str], unwelcome: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the nodes of the next round, in whole replicas or for another layout."""
    return view.sizes.chosen(view.members, good, unwelcome)


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
    if count < 2:  # noqa: PLR2004  # there is no pause after the first failure
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
        # Whatever stopped the attempt starts it again if that was intended; and a run that saves no
        # state would only reach the same limit again.
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
