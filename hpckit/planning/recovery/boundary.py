"""What a running round does at its next boundary if nodes drain, are slow, new or leaving. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpckit.model.counted import format_count
from hpckit.model.events import Event, NodeDraining, Warned
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import DrainPolicy, Recovery
from hpckit.model.states import DrainAction, RoundAction
from hpckit.planning.recovery.ledger import Ledger, explain_exhausted_restart_budget
from hpckit.planning.recovery.node_choice import filter_out_nodes
from hpckit.planning.recovery.round_view import (
    NOTICE_CODE,
    Action,
    NewRound,
    RoundView,
    Stay,
    build_end_with_new_attempt,
    build_round_ended_event,
)


def decide_on_drain(view: RoundView, policy: Recovery, past: Ledger) -> Action | Stay:
    """Return what to do when nodes that a round runs on are being drained.

    Slurm lets the job continue, so the round does not leave if that would lose steps, or nodes that cannot be
    replaced. The new round has no node that is being drained, so no node is left twice for one drain.
    """
    failure = build_drain_failure(view)
    if failure.node is None:
        return Stay(because="none of its nodes is being drained now")
    if not view.saved:
        return Stay(because="nothing has been saved yet to continue from")
    ledger = past.after_round(build_round_ended_event(view, failure, RoundAction.end), view.attempt)
    excluded = ledger.list_nodes_failing_too_often(policy, view.at)
    good = filter_out_nodes(view.standing, excluded | view.draining.keys() | view.unhealthy.keys())
    if len(good) >= len(view.members):
        return NewRound(because=failure, nodes=view.choose_next_nodes(good))
    bound = _explain_ignored_drain(view, failure, policy, ledger)
    if bound is not None:
        return Stay(because=f"no spare node can take over{bound}")
    return build_end_with_new_attempt(failure, NOTICE_CODE, excluded)


def _explain_ignored_drain(view: RoundView, failure: Failure, policy: Recovery, ledger: Ledger) -> str | None:
    """Return why a run without a spare node ignores a drain; None if it leaves."""
    if policy.on_drain is not DrainPolicy.leave:
        return ""
    if not view.requeues:
        return ", and no new attempt would follow: the job cannot be queued again"
    spent = explain_exhausted_restart_budget(ledger, failure, policy)
    return None if spent is None else f"; {spent or 'recovery.restarts.drained is 0'}"


def build_drain_failure(view: RoundView) -> Failure:
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


def build_drain_action_and_events(
    view: RoundView, action: Action | Stay, told: Mapping[str, DrainAction]
) -> tuple[DrainAction, list[Event]]:
    """Return what is done about a round's drained nodes, and what to record of it.

    `told` is what was recorded of each node before: the same is not recorded again.
    """
    taken, found = DrainAction.stay, list[Event]()
    if not isinstance(action, Stay):
        taken = DrainAction.move if isinstance(action, NewRound) else DrainAction.leave
    for node in view.members:
        if node not in view.draining or told.get(node) is taken:
            continue
        reason = view.draining[node]
        found.append(NodeDraining(at=view.at, node=node, reason=reason, action=taken))
        if isinstance(action, Stay):
            why = f" ({reason})" if reason else ""
            words = f"{node} is being drained{why}; the run continues there: {action.because}"
            found.append(Warned(at=view.at, message=words))
    return taken, found


def decide_on_straggler(view: RoundView, policy: Recovery, past: Ledger) -> NewRound | Stay:
    """Return what to do when nodes that a round runs on are slower than the others.

    Only spare nodes take over: a slow run is better than one that waits in the queue again.
    """
    failure = build_straggler_failure(view)
    if failure.node is None:
        return Stay(because="it is not among the nodes of this round")
    if not view.saved:
        return Stay(because="nothing has been saved yet to continue from")
    ledger = past.after_round(build_round_ended_event(view, failure, RoundAction.end), view.attempt)
    spent = explain_exhausted_restart_budget(ledger, failure, policy)
    if spent is not None:
        return Stay(because=spent or "recovery.restarts.straggler is 0")
    unwelcome = ledger.list_nodes_failing_too_often(policy, view.at) | _list_nodes_of_last_resort(view)
    good = filter_out_nodes(view.standing, unwelcome)
    if len(good) < len(view.members):
        return Stay(because="no spare node can take over")
    return NewRound(because=failure, nodes=view.choose_next_nodes(good))


def build_straggler_failure(view: RoundView) -> Failure:
    """Return the failure recorded when a round leaves its slow nodes."""
    nodes = {node: view.slow[node] for node in view.members if node in view.slow}
    return Failure(
        cause=Cause.straggler,
        message="; ".join(nodes.values()),
        node=", ".join(nodes) or None,
        step=view.step,
        signature=Cause.straggler,
    )


def decide_on_resize(view: RoundView, policy: Recovery, past: Ledger) -> NewRound | Stay:
    """Return what to do when a round may have more or fewer replicas, or its nodes are leaving.

    Replicas that keep all of their nodes are not touched, unless one of these is being drained. No
    new node is one that failed too often, is slow or is being drained.
    """
    nodes = view.choose_next_nodes(list_nodes_for_resize(view, policy, past), view.draining)
    if nodes == view.members:
        return Stay(because="its nodes are all that it can use")
    if len(nodes) < view.fewest or not nodes:
        return Stay(because=f"{len(nodes)} of its nodes would be left, and it needs {view.fewest}")
    if not view.saved and {*view.members} <= {*view.standing}:
        return Stay(because="nothing has been saved yet to continue from")
    return NewRound(because=build_resize_failure(view, nodes), nodes=nodes)


def list_nodes_for_resize(view: RoundView, policy: Recovery, past: Ledger) -> Sequence[str]:
    """Return the nodes that a round of another size may have, present ones included."""
    shy = past.list_nodes_failing_too_often(policy, view.at) | _list_nodes_of_last_resort(view)
    return [node for node in view.standing if node in view.members or node not in shy]


def build_resize_failure(view: RoundView, nodes: Sequence[str] = ()) -> Failure:
    """Return the failure recorded when a round leaves to continue in another size."""
    gone = [node for node in view.members if node not in view.standing]
    words = describe_resize(view, nodes) if nodes else "to change its size"
    if gone:
        words += f": {', '.join(gone)} left with their satellite job"
    return Failure(cause=Cause.resized, message=words, step=view.step, signature=Cause.resized)


def describe_resize(view: RoundView, nodes: Sequence[str]) -> str:
    """Return in words how the size changes; in nodes if one of the rounds has no whole replicas."""
    before, after = len(view.members), len(nodes)
    if before % view.replica_nodes or after % view.replica_nodes:
        return f"from {before} to {format_count(after, 'node')}"
    whole = view.replica_nodes
    return f"from {before // whole} to {format_count(after // whole, 'replica')}"


def _list_nodes_of_last_resort(view: RoundView) -> frozenset[str]:
    """Return the nodes that a run joins only if it has no others."""
    return frozenset({*view.draining, *view.slow, *view.unhealthy})
