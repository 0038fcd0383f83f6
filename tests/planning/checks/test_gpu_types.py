"""GPU types as users say them: found among a cluster's own names, or refused with the list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import ConfigError
from hpckit.model.cluster.site import NodeGroup, parse_gres
from hpckit.model.launch import Cluster, ClusterKind, Resources
from hpckit.planning.checks.gpu_types import (
    count_gpus_by_type,
    find_gpu_type_for_slurm,
    find_missing_gpu_type,
    match_gpu_types,
)

SITE = {
    "gpu": {"nvidia_a100-sxm4-80gb": 4, "NVIDIA-H100": 8, "l40s": 4},
    "slices": {"a100": 2, "a100_1g.10gb": 7, "a100_3g.40gb": 2},
    "plain": {"gpu": 4},
}


def word(kind: str, **more: Any) -> str | None:
    """Return what Slurm is told for a type."""
    cluster = Cluster(kind=ClusterKind.slurm, gpu_types=more.pop("types", SITE))
    return find_gpu_type_for_slurm(Resources(gpu_type=kind, gpus_per_node=1, **more), cluster)


@pytest.mark.parametrize(
    ("said", "partition", "told"),
    [
        ("a100", "gpu", "nvidia_a100-sxm4-80gb"),
        ("h100", "gpu", "NVIDIA-H100"),
        ("L40S", "gpu", "l40s"),
        ("a100", "slices", "a100"),
        ("a100", "gpu,slices", "a100"),
        ("1g.10gb", "slices", "a100_1g.10gb"),
        ("3g.40gb", None, "a100_3g.40gb"),
        ("a100_1g.10gb", "slices", "a100_1g.10gb"),
    ],
)
def test_type_is_told_to_slurm_by_the_sites_own_name(said: str, partition: str | None, told: str) -> None:
    """Drivers' long names, other cases, slices; a whole GPU never becomes a slice."""
    assert word(said, partition=partition) == told


def test_type_goes_to_slurm_as_it_is_where_the_cluster_states_none() -> None:
    """Slurm then says whether there is one."""
    assert word("a100", types={}) == "a100"


@pytest.mark.parametrize(
    ("said", "partition", "message", "hint"),
    [
        ("b200", "gpu", "partition gpu has GPUs of type NVIDIA-H100, l40s", "partition gpu has"),
        ("l40", "gpu", "resources.gpu_type is l40", ""),
        ("a100", "plain", "partition plain has no GPUs with a type", "resources.partition=gpu"),
        ("1g.10gb", "gpu", "resources.gpu_type is 1g.10gb", "resources.partition=slices"),
        ("gpu", "plain", "no GPUs with a type", ""),
        ("3g", None, "resources.gpu_type is 3g", ""),
    ],
)
def test_type_that_is_not_there_is_refused_with_those_that_are(
    said: str, partition: str, message: str, hint: str
) -> None:
    """The partition's types, and the partition that has it."""
    with pytest.raises(ConfigError) as raised:
        word(said, partition=partition)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_name_that_means_several_types_is_refused_with_all_of_them() -> None:
    """The user chooses, not the order of a file."""
    with pytest.raises(ConfigError, match="several of that name: a100-40gb, a100-80gb") as raised:
        word("a100", types={"gpu": {"a100-40gb": 4, "a100-80gb": 4}})
    assert "resources.gpu_type=a100-40gb or resources.gpu_type=a100-80gb" in raised.value.hint


def test_type_without_a_number_is_refused() -> None:
    """`gpu_type` says which GPUs, not how many."""
    with pytest.raises(ConfigError, match="asks for no GPU"):
        find_gpu_type_for_slurm(Resources(gpu_type="a100"), Cluster(kind=ClusterKind.slurm))


@given(
    known=st.sets(st.text("ab10-_", min_size=1, max_size=4), max_size=6), wanted=st.text("ab1", min_size=1)
)
def test_match_is_always_one_of_the_known_and_the_exact_one_wins(known: set[str], wanted: str) -> None:
    """Whatever names a site has."""
    found = match_gpu_types(wanted, known)
    assert set(found) <= known
    if wanted in known:
        assert found == (wanted,)


@pytest.mark.parametrize(
    ("gres", "types"),
    [
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:a100:1(S:0),gpu:a100_1g.10gb:7(S:0),shard:a100:4(S:0)", {"a100": 1, "a100_1g.10gb": 7}),
        ("gpu:2,gpu:t4:1", {"t4": 1, "gpu": 2}),
        ("gpu:4", {"gpu": 4}),
        ("(null)", {}),
        ("shard:8", {}),
    ],
)
def test_gpus_of_a_node_are_counted_by_type(gres: str, types: dict[str, int]) -> None:
    """Slices are types; shards are parts of GPUs that are counted already."""
    assert count_gpus_by_type(parse_gres(gres)) == types


@pytest.mark.parametrize(
    ("gres", "hint"),
    [
        ("gpu:nvidia_a100-sxm4-80gb:4", "resources.gpu_type=nvidia_a100-sxm4-80gb"),
        ("gpu:v100:4", "choose one of them"),
        ("gpu:4", "resources.constraint=a100"),
    ],
)
def test_check_says_what_the_nodes_have_instead(
    gres: str, hint: str, plan_of_one_job: Any, tmp_path: Any
) -> None:
    """Where no file states types, Slurm's nodes do."""
    plan = plan_of_one_job(tmp_path, gpus_per_node=1, gpu_type="a100")
    group = NodeGroup(partition="gpu", nodes=2, cpus=8, memory_mb=1, gres=parse_gres(gres))
    found = find_missing_gpu_type("gpu", [group], plan.jobs[0].resources)
    assert found is not None
    assert found.is_error
    assert hint in found.hint
