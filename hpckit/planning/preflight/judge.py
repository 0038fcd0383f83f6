"""The verdict on each inspected node, and which nodes a run avoids because of it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from hpckit.model.cluster.gpus_asked import requested_gpus_per_node, requests_part_of_gpu
from hpckit.model.environment.facts import AskedOfNode, FolderRole
from hpckit.model.environment.health import HealthFinding, HealthReport, HealthVerdict, NodeInspection
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import DeviceKind, LaunchConfig
from hpckit.model.messages import Inspected
from hpckit.model.node_setup import ContainerRuntime
from hpckit.model.nodes import suggests_shared_cause
from hpckit.model.settings import PreflightLevel
from hpckit.planning.preflight.findings import find_gpu_problems, find_host_problems, find_usual_gpu_values
from hpckit.planning.preflight.peers import find_peer_differences
from hpckit.values import dataclass, field, replace

_ORDER = (HealthVerdict.crit, HealthVerdict.warn, HealthVerdict.unknown, HealthVerdict.ok)
_OF_THE_NODE = frozenset(
    {
        *("gpu lost", "remap", "advice", "ecc", "nvlink", "pcie", "gpu processes", "gpu memory"),
        *("xid", "GPUs", "clock", "compute", "memory bandwidth", "host to device"),
        *("device to host", "checksum", "network", FolderRole.shared_memory.value),
    }
)
"""Checks of what one node alone has. What the others say (software, folders, limits) may be the
configuration of the run: it is a node's fault only if another node is without it."""
_SHOWN_BY_GPUS = frozenset({"torch CUDA", "torch architectures"})
"""Checks that find nothing on a node that shows no GPU."""
_SHOWN = 3
_COMPARED = 3
"""From this many nodes on, an inspection says which of them differs from the others."""


def choose_preflight_level(settings: LaunchConfig) -> PreflightLevel:
    """Return how thoroughly the nodes of a run are inspected; never `auto`."""
    level = settings.preflight.level
    if level is not PreflightLevel.auto:
        return level
    return PreflightLevel.fast if requested_gpus_per_node(settings.resources) else PreflightLevel.off


def list_node_requirements(settings: LaunchConfig) -> AskedOfNode:
    """Return what a run with these settings asks of a node."""
    resources = settings.resources
    memory = None if resources.mem_gb is None else int(resources.mem_gb * 2**30)
    return AskedOfNode(
        nodes=resources.nodes,
        gpus=resources.gpus_per_node or 0,
        memory_bytes=memory,
        needs_torch=settings.entry_point is not None,
        on_cpus=settings.runtime.device is DeviceKind.cpu,
        own_python=settings.cluster.python is not None
        or settings.container.runtime is not ContainerRuntime.none,
    )


def judge_node_health(
    reports: Sequence[HealthReport], level: PreflightLevel, asked: AskedOfNode, settings: LaunchConfig
) -> tuple[NodeInspection, ...]:
    """Return the verdict on each node, in the order of the reports.

    A critical finding that all nodes share, of what is not a node's own, is a warning: no other
    node would be better.
    """
    found: dict[str, list[HealthFinding]] = defaultdict(list)
    gpus = [gpu for report in reports if report.health for gpu in report.health.gpus or ()]
    usual = find_usual_gpu_values(gpus)
    shared = settings.sweep.runs_per_gpu > 1 or requests_part_of_gpu(settings.resources)
    cap = settings.cluster.power_cap_w
    for report in reports:
        if report.health is None:
            continue
        health = report.health
        found[report.node] += find_host_problems(health, report.node, asked)
        found[report.node] += find_gpu_problems(
            health.gpus or (), health.xids, report.node, usual, shared=shared, power_cap_w=cap
        )
    for node, finding in find_peer_differences(reports, settings.preflight.clock_s):
        found[node].append(finding)
    everywhere = _find_checks_failed_on_all_nodes(reports, found)
    return tuple(
        _build_node_inspection(
            report, level, [_downgrade_finding_shared_by_all(each, everywhere) for each in found[report.node]]
        )
        for report in reports
    )


def _find_checks_failed_on_all_nodes(
    reports: Sequence[HealthReport], found: Mapping[str, Sequence[HealthFinding]]
) -> frozenset[str]:
    """Return the checks that are critical on every node that could tell, and of no node's own.

    A node that is bad by itself may not be able to show what the others do: without a GPU nothing
    is said of torch's CUDA.
    """
    critical = {
        report.node: {each.check for each in found[report.node] if each.verdict is HealthVerdict.crit}
        for report in reports
        if report.health is not None
    }
    with_gpus = {report.node for report in reports if report.health and report.health.environment.driver.gpus}
    sound = {node for node, checks in critical.items() if not checks & _OF_THE_NODE}
    shared = set[str]()
    for check in set[str]().union(*critical.values()):
        telling = sound & with_gpus if check in _SHOWN_BY_GPUS else sound
        if len(telling) < 2:  # noqa: PLR2004  # one alone shares nothing
            telling = {*critical}
        if all(check in critical[node] for node in telling):
            shared.add(check)
    seen = any(report.health.gpus for report in reports if report.health is not None)
    # Where no node shows any GPU, the partition has none, or none that NVML knows.
    return frozenset(shared - (_OF_THE_NODE if seen else _OF_THE_NODE - {"GPUs"}))


def _downgrade_finding_shared_by_all(finding: HealthFinding, everywhere: frozenset[str]) -> HealthFinding:
    if finding.verdict is HealthVerdict.crit and finding.check in everywhere:
        return replace(finding, verdict=HealthVerdict.warn)
    return finding


def _build_node_inspection(
    report: HealthReport, level: PreflightLevel, findings: Sequence[HealthFinding]
) -> NodeInspection:
    if report.health is None:
        silent = HealthFinding(
            check="answer",
            verdict=HealthVerdict.unknown,
            message=f"{report.node} could not be inspected: {report.problem}",
        )
        findings = [silent]
    ordered = sorted(findings, key=lambda finding: _ORDER.index(finding.verdict))
    verdict = ordered[0].verdict if ordered else HealthVerdict.ok
    return NodeInspection(node=report.node, level=level, verdict=verdict, findings=tuple(ordered))


def list_unhealthy_nodes(inspections: Sequence[NodeInspection]) -> dict[str, str]:
    """Return the nodes that a run avoids, with the reasons in words.

    None if they are most of many: then they share the cause, and no other node is better.
    """
    bad = {
        inspection.node: inspection.critical_findings_text
        for inspection in inspections
        if inspection.verdict is HealthVerdict.crit
    }
    return {} if suggests_shared_cause(len(bad), len(inspections)) else bad


@dataclass(frozen=True, slots=True)
class KnownHealth:
    """Which nodes are unhealthy, and why.

    `grounds` are whether the inspection that found it was the thorough one, and compared nodes.
    """

    unhealthy: Mapping[str, str] = field(default_factory=dict)
    grounds: Mapping[str, tuple[bool, bool]] = field(default_factory=dict)

    def after_inspection(self, inspections: Sequence[NodeInspection], level: PreflightLevel) -> KnownHealth:
        """Return what is known after these inspections.

        A node is unhealthy no longer if an inspection found it well that was as thorough and that
        compared it with others, if it was compared before.
        """
        unhealthy, grounds = dict(self.unhealthy), dict(self.grounds)
        answered = [
            inspection for inspection in inspections if inspection.verdict is not HealthVerdict.unknown
        ]
        present = (level is PreflightLevel.medium, len(answered) >= _COMPARED)
        for one in answered:
            before = grounds.get(one.node, (False, False))
            if all(now >= then for now, then in zip(present, before, strict=True)):
                unhealthy.pop(one.node, None)
                grounds.pop(one.node, None)
        for node, why in list_unhealthy_nodes(inspections).items():
            unhealthy[node] = why
            grounds[node] = max(present, grounds.get(node, present))
        return KnownHealth(unhealthy, grounds)


def build_health_report_of_node(
    node: str, answer: Inspected, sent_at: datetime, heard_at: datetime
) -> HealthReport:
    """Return a node's answer to an order, with what it says of the node's clock.

    The node read its clock after the order was sent, and `took_s` before its answer came.
    """
    health = answer.health
    if health is not None and answer.xids:
        health = replace(health, xids=answer.xids)
    return HealthReport(
        node=node,
        health=health,
        ahead_least_s=(answer.began_at - heard_at).total_seconds() + answer.took_s,
        ahead_most_s=(answer.began_at - sent_at).total_seconds(),
        problem=answer.problem,
    )


def build_unhealthy_nodes_failure(bad: Mapping[str, str]) -> Failure:
    """Return the failure of a round that cannot start without these nodes."""
    reasons = [*bad.values()]
    more = len(reasons) - _SHOWN
    words = "; ".join(reasons[:_SHOWN]) + (f"; and {more} more nodes" if more > 0 else "")
    nodes = ", ".join(sorted(bad))
    return Failure(
        cause=Cause.unhealthy,
        message=f"preflight: {words}",
        node=nodes,
        signature=f"{Cause.unhealthy} {nodes}",
    )
