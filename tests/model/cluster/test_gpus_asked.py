"""Promises of model.cluster.gpus_asked: how many GPUs a run asks for, whichever option does."""

from __future__ import annotations

from typing import Any

import pytest
from asked import asking

from hpckit.model.cluster.gpus_asked import (
    count_allocated_gpus,
    count_cpus_per_rank,
    requested_gpus_per_node,
    requests_part_of_gpu,
)
from hpckit.model.launch import Resources


@pytest.mark.parametrize(
    ("asked", "each", "whole"),
    [
        ({}, None, 0),
        ({"gpus_per_node": 0}, 0, 0),
        ({"gpus_per_node": 4}, 4, 8),
        ({"gres": "gpu:a100:2,ssd:1"}, 2, 4),
        ({"gres": "ssd:1"}, None, 0),
        ({"gres": "shard:3"}, 1, 0),
        ({"gpus_per_node": 0, "gres": "gpu:1"}, 1, 2),
        ({"additional_parameters": {"gpus": 3}}, 2, 3),
        ({"additional_parameters": {"gpus": "a100:2,v100:2"}}, 2, 4),
        ({"tasks_per_node": 2, "additional_parameters": {"gpus_per_task": 1}}, 2, 4),
        ({"tasks_per_node": 2, "additional_parameters": {"gpus-per-task": "h100:1"}}, 2, 4),
        ({"tasks_per_node": 2, "additional_parameters": {"tres_per_task": "gres/gpu:2"}}, 4, 8),
        ({"additional_parameters": {"tres_per_task": "cpu=4"}}, None, 0),
        ({"additional_parameters": {"gres": "gpu:a100:2"}}, 2, 4),
        ({"additional_parameters": {"gpus_per_node": "a100:2"}}, 2, 4),
        ({"additional_parameters": {"tres-per-node": "gres/gpu:2"}}, 2, 4),
        ({"additional_parameters": {"gres": "shard:2"}}, 1, 0),
        ({"additional_parameters": {"gpus": None, "qos": "gpu"}}, None, 0),
    ],
)
def test_gpus_are_counted_by_whichever_option_asks(
    asked: dict[str, Any], each: int | None, whole: int
) -> None:
    """Null, if none does: that is not 0."""
    assert requested_gpus_per_node(Resources(nodes=2, **asked)) == each
    more = tuple(asked.get("additional_parameters", {}).items())
    of_slurm = {"gpus_per_node": 0, **asked, "nodes": 2, "additional_parameters": more}
    assert count_allocated_gpus(asking(**of_slurm)) == whole


@pytest.mark.parametrize(("gres", "part"), [("gpu:1", False), ("shard:2", True), ("mps:50", True)])
def test_parts_of_gpus_are_known(gres: str, *, part: bool) -> None:
    """Other jobs may use the same GPU then."""
    assert requests_part_of_gpu(Resources(gres=gres)) is part


def test_cpus_of_a_rank_are_stated_or_those_of_its_gpus() -> None:
    """What is stated counts; without GPUs the option by GPU gives none."""
    by_gpu: dict[str, Any] = {"additional_parameters": {"cpus_per_gpu": 6}}
    assert count_cpus_per_rank(Resources(gpus_per_node=4, tasks_per_node=2, **by_gpu)) == 12
    assert count_cpus_per_rank(Resources(gpus_per_node=4, cpus_per_task=3, **by_gpu)) == 3
    assert count_cpus_per_rank(Resources(**by_gpu)) == 1
