"""Which incidents an event is, which nodes later launches leave out for them, and why. Pure.

A job could really get nodes that are up, in its partitions, with its features and hardware. A node that is
left out must leave enough others: Slurm lets a job wait without end that asks for more nodes than there are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from hpckit.model import events
from hpckit.model.cluster.site import ClusterNode
from hpckit.model.failure import Cause
from hpckit.model.nodes import IncidentKind, NodeIncident, NodeStanding, suggests_shared_cause
from hpckit.model.plan import ResourceSpec
from hpckit.planning.checks.node_shape import job_fits_node
from hpckit.planning.preflight.judge import list_unhealthy_nodes

HALF_LIFE = timedelta(days=3)
"""Nodes are rebooted and repaired within days; what is weeks old says little."""
WEIGHTS = {IncidentKind.unhealthy: 1.0, IncidentKind.lost: 0.6, IncidentKind.straggler: 0.4}
"""Found by its own driver, or inferred from silence or slowness, which networks cause too."""
AVOIDED = 0.5
"""From this weight on a node is left out: 3 days after an unhealthy GPU, 19 hours after a loss."""
SAME_INCIDENT = timedelta(hours=1)
"""One fault may strike many runs, and one run many times."""
KEPT = timedelta(days=30)
SHARE = 10
"""One of so many nodes may be left out: a launch that left out more would wait too long for it."""
SMALL = 4
"""A cluster of at least so many nodes can do without one."""

_LOST = "its agent stopped answering during preflight"
_KINDS = {
    Cause.node_lost: IncidentKind.lost,
    Cause.agents_missing: IncidentKind.lost,
    Cause.straggler: IncidentKind.straggler,
}


def extract_node_incidents(event: events.Event, run: str) -> Iterator[NodeIncident]:
    """Yield the incidents that an event of a run reports: none for most events."""
    if isinstance(event, events.NodesInspected):
        for node, why in list_unhealthy_nodes(event.inspections).items():
            yield NodeIncident(node=node, at=event.at, kind=IncidentKind.unhealthy, run=run, message=why)
        together = suggests_shared_cause(len(event.lost), len(event.inspections) + len(event.lost))
        for node in () if together else event.lost:
            yield NodeIncident(node=node, at=event.at, kind=IncidentKind.lost, run=run, message=_LOST)
    elif isinstance(event, events.RoundEnded) and event.failure is not None:
        failure = event.failure
        kind = _KINDS.get(failure.cause)
        if kind is not None and failure.node:
            for node in failure.node.split(", "):
                yield NodeIncident(node=node, at=event.at, kind=kind, run=run, message=failure.message)


def rate_nodes_by_incidents(incidents: Iterable[NodeIncident], now: datetime) -> tuple[NodeStanding, ...]:
    """Return what is known of each node, the worst first; incidents of the last 30 days count."""
    by_node: dict[str, list[NodeIncident]] = defaultdict(list)
    for incident in sorted(incidents, key=lambda each: each.at):
        if now - KEPT < incident.at <= now + SAME_INCIDENT:
            by_node[incident.node].append(incident)
    standings = [_rate_node(node, found, now) for node, found in by_node.items()]
    return tuple(sorted(standings, key=lambda standing: (-standing.weight, standing.node)))


def _rate_node(node: str, incidents: Sequence[NodeIncident], now: datetime) -> NodeStanding:
    counted: list[NodeIncident] = []
    latest: dict[IncidentKind, datetime] = {}
    for incident in incidents:
        before = latest.get(incident.kind)
        if before is None or incident.at - before >= SAME_INCIDENT:
            counted.append(incident)
            latest[incident.kind] = incident.at
    ages = [(incident.kind, max(now - incident.at, timedelta())) for incident in counted]
    weight = sum(WEIGHTS[kind] * 0.5 ** (age / HALF_LIFE) for kind, age in ages)
    until = None
    if weight >= AVOIDED:
        until = now + HALF_LIFE * math.log2(weight / AVOIDED)
    return NodeStanding(node=node, incidents=tuple(incidents), weight=round(weight, 3), avoided_until=until)


def choose_nodes_to_avoid(
    standings: Sequence[NodeStanding], known: Collection[str], wanted: Collection[str]
) -> tuple[NodeStanding, ...]:
    """Return the nodes that a launch leaves out, the worst first.

    Parameters: `known` are the names of the cluster's nodes: sbatch refuses others. `wanted` are those that
    the user asked for by name. At most a tenth of all nodes are left out, and one of four or more.
    """
    bad = [standing for standing in standings if standing.avoided_until is not None]
    usable = [node for node in bad if node.node in known and node.node not in wanted]
    return tuple(usable[: max_nodes_to_avoid(len(known))])


def max_nodes_to_avoid(nodes: int) -> int:
    """Return how many of a partition's nodes a launch leaves out at most."""
    return max(nodes // SHARE, int(nodes >= SMALL))


def explain_use_of_bad_nodes(
    standings: Sequence[NodeStanding], nodes: Sequence[ClusterNode]
) -> Mapping[str, str]:
    """Return why launches use nodes that they would leave out; of those left out an empty text.

    Parameter `nodes` are those of the cluster. A node is left out if a launch of one node leaves it
    out in any partition that has it.
    """
    bad = [standing for standing in standings if standing.avoided_until is not None]
    usable: dict[str, set[str]] = {}
    for node in nodes:
        usable.setdefault(node.has.partition, set()).update([node.name] if node.has.accepts_jobs else [])
    chosen = {
        name: {node.node for node in choose_nodes_to_avoid(bad, there, ())} for name, there in usable.items()
    }
    return {standing.node: _explain_use_of_node(standing.node, usable, chosen, nodes) for standing in bad}


def _explain_use_of_node(
    node: str, usable: Mapping[str, set[str]], chosen: Mapping[str, set[str]], nodes: Sequence[ClusterNode]
) -> str:
    if all(known.name != node for known in nodes):
        return "Slurm knows no such node"
    partitions = sorted(name for name, there in usable.items() if node in there)
    if not partitions:
        return "it is down, drained or reserved"
    if any(node in chosen[name] for name in partitions):
        return ""
    bounds = (f"{max_nodes_to_avoid(len(usable[name]))} of {len(usable[name])}" for name in partitions)
    limits = (f"{bound} in {name}" for bound, name in zip(bounds, partitions, strict=True))
    return f"launches leave out {', '.join(limits)} at most"


_CONSTRAINT = ("constraint", "C")
_PARTITION = ("partition", "p")
_CHOOSING = frozenset(
    {
        *("nodelist", "w", "exclude", "x", "nodefile", "F", "reservation", "contiguous"),
        *("prefer", "cluster-constraint", "batch", "clusters", "M"),
    }
)
"""Options of sbatch by which a user chooses nodes, apart from our own fields."""
_KEPT_FREE = frozenset({"reserved", "maint"})
"""How nodes of a reservation are shown; for its own jobs they are usable."""
_SYNTAX = frozenset("[]()*@,!")
"""Marks of constraints that concern several nodes at once, or that Slurm may come to know."""


def find_additional_sbatch_option(asked: ResourceSpec, *names: str) -> str | None:
    """Return the value of an option among the user's own, by any of its names; None if not set."""
    for key, value in asked.additional_parameters:
        if key.replace("_", "-") in names and value not in (None, False):
            return "" if value is True else str(value)
    return None


def selects_nodes_explicitly(asked: ResourceSpec) -> bool:
    """Whether a job names its nodes, or those that it does not want, or a reservation of nodes.

    `resources.exclude` alone does not count: other nodes may be added to it.
    """
    return (
        bool(asked.nodelist or asked.reservation)
        or find_additional_sbatch_option(asked, *_CHOOSING) is not None
    )


def list_requested_partitions(asked: ResourceSpec) -> tuple[str, ...]:
    """Return the partitions that a job names; none for the default one."""
    named = asked.partition or find_additional_sbatch_option(asked, *_PARTITION) or ""
    return tuple(name for name in named.split(",") if name)


def find_usable_nodes(
    nodes: Sequence[ClusterNode],
    asked: ResourceSpec,
    *,
    partitions: Sequence[str],
    reserved: Collection[str] | None = None,
) -> frozenset[str] | None:
    """Return the names of the nodes that a job could get; None if its constraint is not understood.

    Parameters: no `partitions` are the default one. `reserved` are the nodes of its reservation.
    """
    constraint = asked.constraint or find_additional_sbatch_option(asked, *_CONSTRAINT) or ""
    if not _SYNTAX.isdisjoint(constraint) or {"&", "|"} <= {*constraint}:
        return None
    return frozenset(
        node.name
        for node in nodes
        if (node.has.partition in partitions if partitions else node.default)
        and (reserved is None or node.name in reserved)
        and (node.has.accepts_jobs or (reserved is not None and node.has.state in _KEPT_FREE))
        and _features_meet_constraint(constraint, node.features)
        and job_fits_node(asked, node.has)
    )


def _features_meet_constraint(constraint: str, features: Collection[str]) -> bool:
    if "|" in constraint:
        return any(word.strip() in features for word in constraint.split("|"))
    return all(word.strip() in features for word in constraint.split("&") if word.strip())
