"""How far off predictions are for published steps, and what a plan says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from published_steps import FSDP_A100, FSDP_H100, MPT, SHORT, FsdpStep, ratio_of

from hpckit.features.capacity.gpus import GPUS, parse_gpu
from hpckit.features.capacity.model_setup import NumberType
from hpckit.features.capacity.request import CapacityRequest, find_published_step_slowdown, plan_capacity


def ratios(gpu: str, others: list[FsdpStep]) -> list[float]:
    """Return how many times as long as predicted steps with sharded weights took, in order."""
    mpt = [ratio_of(step, plan) for step, plan in MPT if step.gpu.startswith(gpu) and step.sequence <= SHORT]
    return sorted([*mpt, *(other.ratio for other in others)])


@pytest.mark.parametrize(
    ("gpu", "name", "others", "count"),
    [("A100", "A100-80", FSDP_A100, 118), ("H100", "H100-SXM", FSDP_H100, 66)],
    ids=["A100", "H100"],
)
def test_range_that_is_said_is_that_of_four_in_five_published_steps(
    gpu: str, name: str, others: list[FsdpStep], count: int
) -> None:
    """A tenth of them was faster, a tenth slower; so the days of a plan are a likely range."""
    found = ratios(gpu, others)
    assert len(found) == count
    plan = plan_capacity(CapacityRequest(gpu=GPUS[name], gpus=8, model="llama2-7b", parallel=("shard=8",)))
    assert plan.setup is not None
    assert plan.experience == find_published_step_slowdown(plan.setup)
    assert plan.experience is not None
    assert f"of {count} published steps" in plan.experience.said
    assert plan.experience.low == pytest.approx(found[count // 10], abs=0.006)
    assert plan.experience.high == pytest.approx(found[-1 - count // 10], abs=0.006)


@pytest.mark.parametrize("step", [*FSDP_A100, *FSDP_H100], ids=lambda step: f"{step.model}-{step.gpu}")
def test_steps_with_sharded_weights_are_predicted(step: FsdpStep) -> None:
    """Within a third."""
    assert 0.9 <= step.ratio <= 1.33


@pytest.mark.parametrize(
    ("gpu", "words", "said"),
    [
        ("A100-80", ("tensor=8",), "Megatron"),
        ("A100-80", ("shard=8",), "sharded weights on A100"),
        ("A100-40", ("shard=8",), "sharded weights on A100"),
        ("A100-80", ("shard=4", "tensor=2"), "no published step of this layout on this GPU"),
        ("H100-SXM", ("shard=4", "pipeline=2"), "no published step of this layout on this GPU"),
        ("H100-SXM", ("shard=8",), "sharded weights on H100"),
        ("H100-SXM", ("tensor=8",), "no published step of this layout on this GPU"),
        ("MI300X", ("shard=8",), "no published step of this layout on this GPU"),
    ],
)
def test_experience_is_of_layouts_like_the_planned_one(gpu: str, words: tuple[str, ...], said: str) -> None:
    """Rows of Megatron say nothing of sharded weights, and the days are a range around the plan."""
    plan = plan_capacity(CapacityRequest(gpu=GPUS[gpu], gpus=8, model="llama2-7b", parallel=words))
    assert plan.experience is not None
    assert said in plan.experience.said
    assert plan.bill is not None
    assert plan.training_days_range is not None
    low, high = plan.training_days_range
    assert low == plan.bill.days * plan.experience.low
    assert low < high


def test_experience_is_of_the_same_numbers_and_hardware() -> None:
    """Not of 32 bits, and not of a GPU with another network or another rate."""
    words = {"gpus": 8, "model": "llama2-7b", "parallel": ("shard=8",)}
    fp32 = CapacityRequest(gpu=GPUS["A100-80"], precision=NumberType.fp32, **words)  # type: ignore[arg-type]
    own = CapacityRequest(gpu=parse_gpu("A100-80 network_gb_per_s=0.05"), **words)  # type: ignore[arg-type]
    nodes_of_four = replace(GPUS["A100-80"], domain=4, per_node=4)
    small = CapacityRequest(gpu=nodes_of_four, **words)  # type: ignore[arg-type]
    for request in (fp32, own, small):
        found = plan_capacity(request).experience
        assert found is not None
        assert "no published step" in found.said
