"""`check` warns where a cluster's file promises more than Slurm has now, and only there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from hpckit.model.cluster.site import NodeGroup, Partition, Site, parse_gres
from hpckit.model.launch import Cluster
from hpckit.planning.checks.outdated import find_outdated_cluster_facts

FILE = Cluster(
    partitions=["gpu", "cpu"],
    time_limits_min={"gpu": 120, "cpu": 1440},
    gpu_types={"gpu": {"a100": 4, "h100": 8}},
    gpus_per_node=8,
    cpus_per_node=64,
)
SITE = Site(
    partitions={
        "gpu": Partition(name="gpu", max_time=timedelta(hours=2)),
        "cpu": Partition(name="cpu"),
        "new": Partition(name="new"),
    },
    nodes=(
        NodeGroup(partition="gpu", nodes=1, cpus=64, memory_mb=1, gres=parse_gres("gpu:a100:4")),
        NodeGroup(
            partition="gpu", nodes=1, cpus=64, memory_mb=1, gres=parse_gres("gpu:h100:8"), state="down"
        ),
        NodeGroup(partition="cpu", nodes=1, cpus=32, memory_mb=1, gres={}),
    ),
)


def warned(cluster: Cluster = FILE, site: Site = SITE) -> list[str]:
    """Return the keys that are warned of."""
    found = list(find_outdated_cluster_facts(cluster, site))
    assert not any(finding.is_error for finding in found)
    assert all("--diff" in finding.hint for finding in found)
    return [finding.key for finding in found]


def test_file_that_is_right_or_modest_is_not_warned_of() -> None:
    """More partitions, no limit where there was one, more GPUs, nodes that are down: nothing is lost."""
    assert warned() == []
    assert warned(replace(FILE, gpu_types={"gpu": {"a100": 2}}, gpus_per_node=4, cpus_per_node=16)) == []
    assert warned(Cluster()) == []


@pytest.mark.parametrize(
    ("cluster", "keys"),
    [
        (replace(FILE, partitions=["gpu", "old", "older"]), ["cluster.partitions"]),
        (replace(FILE, time_limits_min={"gpu": 240, "old": 1}), ["cluster.time_limits_min.gpu"]),
        (replace(FILE, gpu_types={"gpu": {"a100": 8}}), ["cluster.gpu_types.gpu"]),
        (replace(FILE, gpu_types={"gpu": {"v100": 1}}), ["cluster.gpu_types.gpu"]),
        (replace(FILE, gpu_types={"cpu": {"t4": 1}}), ["cluster.gpu_types.cpu"]),
        (replace(FILE, gpus_per_node=16), ["cluster.gpus_per_node"]),
        (replace(FILE, cpus_per_node=128), ["cluster.cpus_per_node"]),
    ],
)
def test_what_the_cluster_lost_is_warned_of_by_its_key(cluster: Cluster, keys: list[str]) -> None:
    """One warning for each key."""
    assert warned(cluster) == keys


def test_what_slurm_was_not_asked_is_left_alone() -> None:
    """A job of one CPU asks for no nodes, and an answer may be missing."""
    stale = replace(FILE, gpus_per_node=99, cpus_per_node=999, partitions=["old"])
    assert warned(stale, Site()) == []
    assert warned(stale, replace(SITE, nodes=None)) == ["cluster.partitions"]
