"""Whether the nodes of a partition have what a job asks of each of its nodes. Pure.

Checks CPUs, memory and generic resources. Values that Slurm did not report never count against a launch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hpckit.model.cluster.site import NodeGroup, parse_gres
from hpckit.model.counted import format_count
from hpckit.model.finding import Finding, build_error_finding
from hpckit.model.plan import JobSpec, ResourceSpec, SharedJobSpec
from hpckit.planning.checks.gpu_types import find_missing_gpu_type
from hpckit.values import dataclass, replace

_ELSEWHERE = "choose another partition with resources.partition=NAME"
_CPUS = "CPUs"
_MEMORY = "GB of memory"
_LOWER = {_CPUS: "resources.tasks_per_node or resources.cpus_per_task"}
_UNSET_MEMORY = 1
"""Megabytes that Slurm reports for a node whose memory is not configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What each node must have: `count` of `what`, and the key that asks for it."""

    what: str
    count: float
    key: str
    value: object

    def amount_on_node(self, group: NodeGroup) -> float | None:
        """Return how much of it a node of the group has, null if not known."""
        if self.what == _CPUS:
            return group.cpus or None
        if self.what == _MEMORY:
            return group.memory_mb / 1024 if group.memory_mb > _UNSET_MEMORY else None
        return group.gres.get(self.what, 0)

    def is_met_by_node(self, group: NodeGroup) -> bool:
        """Whether a node of the group has enough of it."""
        has = self.amount_on_node(group)
        return has is None or self.count <= has

    def __str__(self) -> str:
        of = "" if self.what in (_CPUS, _MEMORY) else "x "
        return f"{self.count:g} {of}{self.what}"


def asks_for_node_resources(resources: ResourceSpec) -> bool:
    """Whether a job asks its nodes for anything beyond a single CPU."""
    return bool(_list_node_needs(resources))


def job_fits_node(resources: ResourceSpec, node: NodeGroup) -> bool:
    """Whether a node has what a job asks of each of its nodes, as far as Slurm tells."""
    return all(need.is_met_by_node(node) for need in _list_node_needs(resources))


def find_node_resource_problems(name: str, groups: Sequence[NodeGroup], job: JobSpec) -> Iterator[Finding]:
    """Yield an error for each resource that too few nodes of the partition, `groups`, have."""
    resources, there = job.resources, sum(group.nodes for group in groups)
    if resources.allocated_nodes > there:
        return
    if (missing := find_missing_gpu_type(name, groups, resources)) is not None:
        yield missing
        return
    needs = _list_node_needs(resources)
    lacking = [need for need in needs if _count_matching_nodes([need], groups) < resources.allocated_nodes]
    for need in lacking:
        yield _build_missing_resource_finding(need, name, groups, job)
    if not lacking and _count_matching_nodes(needs, groups) < resources.allocated_nodes:
        asked = ", ".join(map(str, needs))
        yield build_error_finding(
            needs[0].key,
            needs[0].value,
            f"{format_count(resources.allocated_nodes, 'node')} with {asked} each asked for; "
            f"partition {name} has {_count_matching_nodes(needs, groups)} with all of that: "
            f"{_describe_node_groups(groups)}",
            f"ask for less of one of them, or {_ELSEWHERE}",
        )


def _list_node_needs(resources: ResourceSpec) -> list[_Need]:
    needs = list(_list_gpu_and_gres_needs(resources))
    if resources.mem_gb is not None:
        key = "resources.mem_gb"
        needs.append(_Need(what=_MEMORY, count=resources.mem_gb, key=key, value=resources.mem_gb))
    cpus = resources.tasks_per_node * resources.cpus_per_task
    if cpus > 1 and not dict(resources.additional_parameters).get("overcommit"):
        tasks = resources.tasks_per_node > 1
        key = "resources.tasks_per_node" if tasks else "resources.cpus_per_task"
        value = resources.tasks_per_node if tasks else resources.cpus_per_task
        needs.append(_Need(what=_CPUS, count=cpus, key=key, value=value))
    return needs


def _list_gpu_and_gres_needs(resources: ResourceSpec) -> Iterator[_Need]:
    gpus = resources.gpus_per_node
    if gpus:
        what = f"gpu:{resources.gpu_type}" if resources.gpu_type else "gpu"
        yield _Need(what=what, count=gpus, key="resources.gpus_per_node", value=gpus)
    asked = parse_gres(resources.gres or "")
    for name, count in asked.items():
        # parse_gres also counts by name alone; that adds nothing if a type is requested.
        if not any(other.startswith(f"{name}:") for other in asked):
            yield _Need(what=name, count=count, key="resources.gres", value=resources.gres)


def _count_matching_nodes(needs: Collection[_Need], groups: Collection[NodeGroup]) -> int:
    return sum(group.nodes for group in groups if all(need.is_met_by_node(group) for need in needs))


def _build_missing_resource_finding(
    need: _Need, name: str, groups: Sequence[NodeGroup], job: JobSpec
) -> Finding:
    having, largest = (
        _count_matching_nodes([need], groups),
        max(need.amount_on_node(group) or 0 for group in groups),
    )
    if having:
        return build_error_finding(
            need.key,
            need.value,
            f"{format_count(job.resources.allocated_nodes, 'node')} with {need} asked for; "
            f"partition {name} has {having} such nodes: {_describe_node_groups(groups)}",
            f"lower {need.key} or resources.nodes, or {_ELSEWHERE}",
        )
    offer = f": {_describe_node_groups(groups)}" if need.what not in (_CPUS, _MEMORY) else ""
    amount = f"{largest:.3f}".rstrip("0").rstrip(".") + (" GB" if need.what == _MEMORY else "")
    has = f"the largest node of partition {name} has {amount}{offer}"
    shared = job.shared_job
    if shared is not None:
        own = next(
            (own_need for own_need in _list_node_needs(shared.each) if own_need.what == need.what), None
        )
        if own is not None and own.count > largest:
            return _build_missing_resource_finding(
                own, name, groups, replace(job, resources=shared.each, shared_job=None)
            )
        return build_error_finding(
            "sweep.runs_per_job",
            shared.runs_per_job,
            f"a shared job asks for {_format_request_sum(need, job)}; {has}",
            f"{_suggest_fewer_runs(shared, need, largest)}, or {_ELSEWHERE}",
        )
    return build_error_finding(
        need.key,
        need.value,
        f"a node is asked for {_format_request_sum(need, job)}; {has}",
        f"lower {_LOWER.get(need.what, need.key)}, or {_ELSEWHERE}",
    )


def _format_request_sum(need: _Need, job: JobSpec) -> str:
    """Return how the requested amount adds up: `25 runs x 1 CPU = 25`."""
    each = job.resources if job.shared_job is None else job.shared_job.each
    if need.what == _CPUS:
        factors = [format_count(each.cpus_per_task, "CPU")]
        if each.tasks_per_node > 1:
            factors.insert(0, f"{each.tasks_per_node} tasks")
    elif need.what == _MEMORY:
        factors = [f"{each.mem_gb:g} GB"]
    else:
        factors = []
    if job.shared_job is not None:
        runs = format_count(job.shared_job.slots, "run")
        if not factors:
            return f"{need} for {runs}"
        factors.insert(0, runs)
    if len(factors) > 1:
        return f"{' x '.join(factors)} = {need.count:g}"
    return factors[0] if factors else str(need)


def _suggest_fewer_runs(shared: SharedJobSpec, need: _Need, largest: float) -> str:
    fitting = max(1, int(largest * shared.slots // need.count))
    also = f" and sweep.runs_per_gpu={fitting}" if shared.runs_per_gpu > fitting else ""
    return f"set sweep.runs_per_job={fitting}{also} or less"


def _describe_node_groups(groups: Collection[NodeGroup]) -> str:
    said = (
        f"{group.nodes} with {group.cpus} CPUs "
        f"{group.memory_mb / 1024:.0f} GB "
        + (" ".join(f"{name}={n}" for name, n in group.gres.items()) or "no gres")
        for group in groups
    )
    return "; ".join(dict.fromkeys(said))
