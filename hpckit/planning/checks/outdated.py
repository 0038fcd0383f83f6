"""Where the file of a cluster says other things than Slurm does now. Pure.

It compares what matters to runs: partitions, time limits, GPUs and CPUs. What Slurm was not asked, or did
not answer, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from hpckit.model.cluster.site import NodeGroup, Partition, Site
from hpckit.model.counted import format_short_list
from hpckit.model.finding import Finding, build_warning_finding
from hpckit.model.launch import Cluster
from hpckit.planning.checks.gpu_types import count_gpus_by_type

_HINT = "`hpckit init NAME --diff` shows all that differs from conf/cluster/NAME.yaml; correct the file"
_SHOWN = 6


def find_outdated_cluster_facts(cluster: Cluster, site: Site) -> Iterator[Finding]:
    """Yield a warning for each key of `cluster` that promises more than the cluster has now."""
    if site.partitions is not None:
        yield from _find_partitions_that_are_gone(cluster, site.partitions)
        yield from _find_lower_time_limits(cluster, site.partitions)
    if site.nodes:
        yield from _find_missing_gpus(cluster, site.nodes)
        largest = max(node.cpus for node in site.nodes)
        if cluster.cpus_per_node is not None and 0 < largest < cluster.cpus_per_node:
            yield _warn("cpus_per_node", cluster.cpus_per_node, f"the largest node has {largest} CPUs")


def _find_partitions_that_are_gone(cluster: Cluster, there: Mapping[str, Partition]) -> Iterator[Finding]:
    gone = [name for name in cluster.partitions if name not in there]
    if gone:
        has = format_short_list(sorted(there), _SHOWN)
        yield _warn("partitions", ",".join(gone), f"Slurm has no such partition now; there are {has}")


def _find_lower_time_limits(cluster: Cluster, there: Mapping[str, Partition]) -> Iterator[Finding]:
    for name, stated in cluster.time_limits_min.items():
        most = there[name].max_time if name in there else None
        if most is not None and most < timedelta(minutes=stated):
            now = f"{most / timedelta(minutes=1):g}"
            yield _warn(f"time_limits_min.{name}", stated, f"the limit of partition {name} is now {now}")


def _find_missing_gpus(cluster: Cluster, nodes: Sequence[NodeGroup]) -> Iterator[Finding]:
    """Yield a warning for each type of which no node of its partition has as many as stated."""
    most: dict[str, dict[str, int]] = {}
    for node in nodes:
        types = most.setdefault(node.partition, {})
        for kind, count in count_gpus_by_type(node.gres).items():
            types[kind] = max(count, types.get(kind, 0))
    for name, stated in cluster.gpu_types.items():
        now = most.get(name)
        lost = [] if now is None else [kind for kind, count in stated.items() if now.get(kind, 0) < count]
        if now is not None and lost:
            has = ", ".join(f"{kind}:{count}" for kind, count in sorted(now.items())) or "no GPUs"
            said = ", ".join(f"{kind}:{stated[kind]}" for kind in lost)
            yield _warn(f"gpu_types.{name}", said, f"a node of partition {name} now has {has}")
    largest = max((sum(types.values()) for types in most.values()), default=0)
    if largest < cluster.gpus_per_node:
        yield _warn("gpus_per_node", cluster.gpus_per_node, f"no node has more than {largest} GPUs")


def _warn(key: str, stated: object, now: str) -> Finding:
    return build_warning_finding(f"cluster.{key}", stated, f"cluster.{key} says {stated}, but {now}", _HINT)
