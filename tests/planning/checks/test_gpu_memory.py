"""Promises of the check whether a model's states surely do not fit on the GPUs of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpckit.features.capacity.gpus import GPUS
from hpckit.model.cluster.site import NodeGroup, Site
from hpckit.model.finding import Finding, Severity
from hpckit.model.parallel.model_check import CheckedModel, StageMemory
from hpckit.planning.checks.gpu_memory import find_gpu_memory_problems, max_gpu_memory_bytes

GIB = 2**30
SMALL = StageMemory(
    stage=0, parameters=1, parameter_bytes=8 * GIB, gradient_bytes=8 * GIB, adam_bytes=16 * GIB
)
LARGE = replace(SMALL, stage=1, parameter_bytes=20 * GIB)
MODEL = CheckedModel(
    run=0, layout="pipeline 2", nodes=4, parameters=2, stages=(SMALL, LARGE), trains=True, adam=True
)
Finder = Callable[..., tuple[Finding, ...]]


@pytest.fixture
def found(plan_of_one_job: Callable[..., Any]) -> Finder:
    """Return a function that checks a model in a job on nodes with these generic resources."""

    def _found(*nodes: Mapping[str, int], model: CheckedModel = MODEL, **asked: Any) -> tuple[Finding, ...]:
        groups = tuple(NodeGroup(partition="gpu", nodes=1, cpus=8, memory_mb=1, gres=node) for node in nodes)
        plan = plan_of_one_job(Path("/launch"), **{"partition": "gpu"} | asked)
        return tuple(find_gpu_memory_problems(plan, [model], Site(nodes=groups or None)))

    return _found


V100 = {"gpu": 4, "gpu:v100": 4}
A100 = {"gpu": 4, "gpu:a100": 4}
UNTYPED = {"gpu": 4}


def test_states_larger_than_every_gpu_of_the_partition_are_an_error(found: Finder) -> None:
    """44 GiB do not fit on 32; the finding names both, the type, and what to do."""
    (one,) = found(V100, gpus_per_node=4)
    assert one.severity is Severity.error
    assert "44.0 GiB for parameters, gradients and Adam's state" in one.message
    assert "type v100 has 32 GiB" in one.message
    assert one.hint


def test_states_that_the_host_keeps_are_no_error(found: Finder) -> None:
    """With `parallel.offload` they need not fit on a GPU."""
    assert not found(V100, gpus_per_node=4, model=replace(MODEL, offloads=True))


def test_type_that_the_job_asks_for_counts(found: Finder) -> None:
    """`resources.gres` names it, also where nothing is known of the nodes."""
    assert found(gres="gpu:v100:4")
    assert found(A100, gres="gpu:tesla_v100-sxm2-32gb:4")
    assert not found(V100, gres="gpu:a100:4")


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        ((V100, A100), {"gpus_per_node": 4}),
        ((V100, UNTYPED), {"gpus_per_node": 4}),
        (({"gpu": 8, "gpu:v100": 4},), {"gpus_per_node": 4}),
        (({"gpu": 4, "gpu:unheard_of": 4},), {"gpus_per_node": 4}),
        ((), {"gpus_per_node": 4}),
        ((V100,), {"gpus_per_node": 0}),
        ((V100,), {"gpus_per_node": 4, "partition": "other"}),
        ((), {"gres": "gpu:4"}),
        ((), {"gres": "shard:v100:4"}),
    ],
)
def test_what_is_not_sure_is_no_finding(
    found: Finder, nodes: tuple[Mapping[str, int], ...], asked: dict[str, Any]
) -> None:
    """Larger GPUs, types that are not told or not known, and jobs without GPUs say nothing."""
    assert found(*nodes, **asked) == ()


def test_state_of_an_optimizer_counts_only_if_it_is_adam(found: Finder) -> None:
    """Without Adam, 28 GiB of parameters and gradients fit on 32; without training, no more."""
    assert not found(V100, model=replace(MODEL, adam=False), gpus_per_node=4)
    assert not found(V100, model=replace(MODEL, trains=False), gpus_per_node=4)
    huge = replace(LARGE, parameter_bytes=40 * GIB, gradient_bytes=0)
    (one,) = found(V100, model=replace(MODEL, adam=False, stages=(huge,)), gpus_per_node=4)
    assert "40.0 GiB for parameters and gradients alone" in one.message


@pytest.mark.parametrize("name", GPUS)
def test_no_gpu_of_the_catalogue_has_more_than_is_assumed(name: str) -> None:
    """What is assumed of a type is never less than a GPU of it has."""
    assumed = max_gpu_memory_bytes(name.lower())
    assert assumed is None or GPUS[name].memory <= assumed


def test_part_of_a_gpu_is_taken_for_a_whole_one() -> None:
    """A slice has less: what does not fit the whole surely does not fit it."""
    assert max_gpu_memory_bytes("nvidia_a100_3g.20gb") == 80 * GIB
    assert max_gpu_memory_bytes("a100x2") is None
    assert max_gpu_memory_bytes("") is None


def test_memory_of_a_fallback_layout_names_its_nodes(found: Finder) -> None:
    """It is an error of `parallel.fallback`, with the number of nodes on which it does not fit."""
    (one,) = found({"gpu": 8, "gpu:v100": 8}, gpus_per_node=8, model=replace(MODEL, fallback=True))
    assert one.key == "parallel.fallback"
    assert one.message.startswith("on 4 nodes (parallel.fallback): a rank needs ")
