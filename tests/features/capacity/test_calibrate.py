"""Promises of plans that follow a measured run."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import ConfigError
from hpckit.features.capacity.calibrate import compare_predictions_with_run, fill_request_from_run
from hpckit.features.capacity.gpus import GPUS, find_gpu_by_driver_name, parse_gpu
from hpckit.features.capacity.model_plan import MeasuredRun
from hpckit.features.capacity.model_setup import GpuSpec, NumberType, Recomputation
from hpckit.features.capacity.power import cap_gpu_power
from hpckit.features.capacity.request import CapacityRequest, plan_capacity
from hpckit.features.capacity.search import list_fitting_layouts
from hpckit.model.parallel.layout import Layout

REQUEST = CapacityRequest(gpu=GPUS["A100-80"], gpus=8, model="gpt2-xl", sequence=1024)
PLANNED = plan_capacity(replace(REQUEST, parallel=["shard=8"], global_batch=64, precision=NumberType.bf16))
assert PLANNED.rates is not None
RUN = MeasuredRun(
    name="gpt-1.0",
    step_s=PLANNED.rates.step_s,
    layout=Layout(shard=8),
    gpu="NVIDIA A100-SXM4-80GB",
    batch=64,
    microbatches=8,
    memory_bytes=round(PLANNED.memory.expected),
    parameters=PLANNED.parameters,
    precision=NumberType.bf16,
)


def test_run_that_did_what_was_predicted_changes_nothing() -> None:
    """Both ratios are 1, and so is every number of the plan."""
    found = compare_predictions_with_run(REQUEST, RUN)
    assert found.step_ratio == pytest.approx(1)
    assert found.memory_ratio == pytest.approx(1)
    plan = plan_capacity(replace(fill_request_from_run(REQUEST, RUN, gpus=None), calibration=found))
    assert plan.memory.expected == pytest.approx(PLANNED.memory.expected)
    assert plan.time is not None
    assert plan.time.total == pytest.approx(RUN.step_s)


@given(slower=st.floats(1, 20), larger=st.floats(0.7, 4))
def test_plan_of_the_run_itself_says_what_was_measured(slower: float, larger: float) -> None:
    """Whatever that is: its step, and its memory if this is more than states and context."""
    memory = PLANNED.memory
    working = memory.expected - memory.states - memory.context
    used = round(memory.states + memory.context + larger * working)
    run = replace(RUN, step_s=slower * RUN.step_s, memory_bytes=used)
    found = compare_predictions_with_run(REQUEST, run)
    plan = plan_capacity(replace(fill_request_from_run(REQUEST, run, gpus=None), calibration=found))
    assert plan.rates is not None
    assert plan.rates.step_s == pytest.approx(run.step_s)
    assert plan.memory.expected == pytest.approx(used, rel=1e-6)
    assert plan.memory.states == memory.states
    assert found.correct_memory(memory).low <= plan.memory.expected <= plan.memory.high


def test_other_sizes_are_off_by_the_same_share() -> None:
    """On 64 GPUs a step takes twice what is predicted, in each of its parts."""
    found = compare_predictions_with_run(REQUEST, replace(RUN, step_s=2 * RUN.step_s))
    more = fill_request_from_run(replace(REQUEST, parallel=["shard=64"]), RUN, gpus=64)
    assert (more.gpus, more.precision, more.global_batch) == (64, NumberType.bf16, None)
    plain, twice = plan_capacity(more), plan_capacity(replace(more, calibration=found))
    assert plain.time is not None
    assert twice.time is not None
    for field in fields(plain.time):
        expected = 2 * getattr(plain.time, field.name)
        assert getattr(twice.time, field.name) == pytest.approx(expected)
    assert plain.bill is not None
    assert twice.bill is not None
    assert twice.bill.gpu_hours == pytest.approx(2 * plain.bill.gpu_hours, rel=0.01)


def test_search_leaves_out_what_the_run_shows_not_to_fit() -> None:
    """If working memory is three times as much as predicted, fewer layouts fit; times are its."""
    request = replace(fill_request_from_run(REQUEST, RUN, gpus=8), parallel=(), micro_batch=None)
    memory = PLANNED.memory
    working = memory.expected - memory.states - memory.context
    used = round(memory.states + memory.context + 3 * working)
    found = compare_predictions_with_run(REQUEST, replace(RUN, step_s=2 * RUN.step_s, memory_bytes=used))
    plain, calibrated = (
        list_fitting_layouts(request),
        list_fitting_layouts(replace(request, calibration=found)),
    )
    assert 0 < len(calibrated) < len(plain)
    by_setup = {one.setup: one.time.total for one in plain}
    for one in calibrated:
        assert one.fits
        assert one.time.total == pytest.approx(2 * by_setup[one.setup])


def test_settings_of_the_run_are_taken_unless_others_are_asked_for() -> None:
    """The layout and the batch only for as many GPUs as it had."""
    same = fill_request_from_run(REQUEST, RUN, gpus=None)
    assert (same.gpus, list(same.parallel), same.global_batch) == (8, ["shard=8"], 64)
    assert (same.micro_batch, same.precision) == (1, NumberType.bf16)
    full = replace(REQUEST, recompute=Recomputation.full, precision=NumberType.fp32)
    other = fill_request_from_run(full, RUN, gpus=16)
    assert (other.gpus, list(other.parallel), other.global_batch) == (16, [], None)
    assert (other.recompute, other.precision) == (Recomputation.full, NumberType.fp32)


@pytest.mark.parametrize(
    ("run", "request_", "said"),
    [
        (replace(RUN, parameters=482_880), REQUEST, "gpt-1.0 trained 482,880 parameters"),
        (replace(RUN, step_s=1e-4), REQUEST, "took 0.0001 s a step"),
        (replace(RUN, batch=None), REQUEST, "does not say how many samples"),
    ],
)
def test_description_that_cannot_be_that_of_the_run_is_refused(
    run: MeasuredRun, request_: CapacityRequest, said: str
) -> None:
    """Another model, another batch, or none."""
    with pytest.raises(ConfigError, match=said) as caught:
        compare_predictions_with_run(request_, run)
    assert caught.value.hint


def test_batch_that_the_run_does_not_tell_can_be_given() -> None:
    """It is taken for the run and for the plan."""
    found = compare_predictions_with_run(replace(REQUEST, global_batch=64), replace(RUN, batch=None))
    assert found.step_ratio == pytest.approx(1, rel=0.2)


def test_memory_below_the_states_calibrates_nothing() -> None:
    """As when NVML tells of another process alone; the step still counts."""
    found = compare_predictions_with_run(REQUEST, replace(RUN, memory_bytes=1000))
    assert found.memory_ratio is None
    assert found.correct_memory(PLANNED.memory) == PLANNED.memory
    assert compare_predictions_with_run(REQUEST, replace(RUN, memory_bytes=None)).memory_ratio is None


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100 80GB PCIe", "A100-80"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Tesla V100-SXM2-16GB", None),
        ("NVIDIA A30", None),
        ("", None),
    ],
)
def test_gpu_is_known_by_what_its_driver_calls_it(device: str, name: str | None) -> None:
    """Sizes that are not in the catalogue are not taken for others."""
    found = find_gpu_by_driver_name(device)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    "gpu",
    [
        parse_gpu("A100-80"),
        parse_gpu("A100-80 network_gb_per_s=1.5 gpus_per_link=4"),
        parse_gpu("A100-80 name=ours network_gb_per_s=1.5"),
        cap_gpu_power(parse_gpu("A100-80"), 200),
    ],
    ids=["catalogue", "network", "named", "capped"],
)
def test_plan_of_a_runs_own_layout_is_what_it_took(gpu: GpuSpec) -> None:
    """On a site's own GPUs, too: what differs from the catalogue counts once."""
    request = CapacityRequest(gpu=gpu, gpus=64, model="llama3-8b", sequence=8192)
    run = replace(RUN, step_s=9.0, layout=Layout(shard=64), parameters=None, microbatches=1)
    found = compare_predictions_with_run(request, run)
    plan = plan_capacity(replace(fill_request_from_run(request, run, gpus=None), calibration=found))
    assert plan.time is not None
    assert plan.time.total == pytest.approx(9.0)
