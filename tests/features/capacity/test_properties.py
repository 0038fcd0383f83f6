"""What holds for every plan: sums, bounds, and what grows with what."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpckit.errors import ConfigError
from hpckit.features.capacity.activations import count_kept_activation_bytes
from hpckit.features.capacity.gpus import GPUS
from hpckit.features.capacity.memory import (
    count_stage_parameters,
    estimate_peak_memory,
    list_peak_memory_candidates,
)
from hpckit.features.capacity.model_setup import (
    AttentionKind,
    GpuSpec,
    NumberType,
    Recomputation,
    TrainingSetup,
)
from hpckit.features.capacity.model_transformer import TransformerShape
from hpckit.features.capacity.power import (
    SiteRates,
    cap_gpu_power,
    estimate_lost_time_share,
    estimate_training_bill,
)
from hpckit.features.capacity.presets import MODELS
from hpckit.features.capacity.request import estimate_memory_and_step_time
from hpckit.features.capacity.search import list_candidate_setups, select_pareto_optimal, sort_fitting_setups
from hpckit.features.capacity.step_time import count_hardware_flops, count_model_flops, predict_step_time
from hpckit.features.capacity.words import ParallelWords
from hpckit.model.parallel.layout import Layout

SIZES = st.sampled_from([1, 2, 4])


def _number_types(gpu: GpuSpec) -> list[NumberType]:
    if gpu.flops_bf16 is None:
        return [NumberType.fp16, NumberType.fp32]
    return list(NumberType)


@st.composite
def setups(draw: st.DrawFn) -> TrainingSetup:
    """Draw a setup whose numbers fit together."""
    heads = draw(st.sampled_from([8, 16, 32]))
    layout = Layout(
        replicate=draw(SIZES),
        shard=draw(SIZES),
        tensor=draw(SIZES),
        pipeline=draw(SIZES),
        context=draw(SIZES),
    )
    micro_batch = draw(SIZES)
    gpu = draw(st.sampled_from(list(GPUS.values())))
    return TrainingSetup(
        shape=TransformerShape(
            hidden=heads * draw(st.sampled_from([64, 128])),
            layers=8 * draw(st.integers(1, 12)),
            heads=heads,
            kv_heads=draw(st.sampled_from([4, 8])),
            vocab=draw(st.integers(1000, 200_000)),
            swiglu=draw(st.booleans()),
            biases=draw(st.booleans()),
            tied=draw(st.booleans()),
        ),
        gpu=gpu,
        layout=layout,
        sequence=draw(st.sampled_from([1024, 2048, 8192])),
        micro_batch=micro_batch,
        global_batch=layout.data_size * micro_batch * draw(st.integers(1, 8)),
        precision=draw(st.sampled_from(_number_types(gpu))),
        recompute=draw(st.sampled_from(list(Recomputation))),
        attention=draw(st.sampled_from(list(AttentionKind))),
    )


@given(setup=setups())
def test_total_is_the_sum_of_parts_and_between_its_bounds(setup: TrainingSetup) -> None:
    """No component is negative; low <= expected <= high."""
    memory, time = estimate_peak_memory(setup), predict_step_time(setup)
    parts = [getattr(memory, field.name) for field in fields(memory)]
    assert min(parts) >= 0
    assert memory.expected == pytest.approx(sum(parts))
    assert memory.low <= memory.expected <= memory.high
    assert min(getattr(time, field.name) for field in fields(time)) >= 0
    assert time.total > 0


@given(setup=setups())
def test_stages_hold_the_whole_model(setup: TrainingSetup) -> None:
    """All stages together have each parameter, and no more than what ranks have to repeat."""
    layout = setup.layout
    held = sum(count_stage_parameters(setup, stage) for stage in range(layout.pipeline))
    repeated = setup.shape.embedding_elements + setup.shape.layers * setup.shape.replicated_elements
    assert setup.shape.parameters <= held * layout.tensor * 1.0001
    most = setup.shape.parameters + (layout.tensor - 1) * (
        repeated + (setup.shape.positions + 2) * setup.shape.hidden
    )
    assert held * layout.tensor <= most + setup.shape.embedding_elements


def at_loss(setup: TrainingSetup) -> float:
    """Return the bytes of the last stage's tensors as the loss is computed."""
    return dict(list_peak_memory_candidates(setup, setup.layout.pipeline - 1))["loss"].tensor_bytes


@given(setup=setups())
def test_more_of_anything_needs_more(setup: TrainingSetup) -> None:
    """A larger micro batch, a longer sequence and less recomputation never need less memory.

    They need more as the loss is computed; the optimizer's step, of no tokens, may need the most.
    """
    memory = estimate_peak_memory(setup).expected
    larger = replace(setup, micro_batch=2 * setup.micro_batch, global_batch=2 * setup.global_batch)
    longer = replace(setup, sequence=2 * setup.sequence)
    for more in (larger, longer):
        assert estimate_peak_memory(more).expected >= memory
        assert at_loss(more) > at_loss(setup)
        assert predict_step_time(more).total > predict_step_time(setup).total
    kept = [count_kept_activation_bytes(replace(setup, recompute=one)) for one in Recomputation]
    assert kept[0] >= kept[1]


@given(setup=setups())
def test_recomputation_is_counted_as_work_of_the_hardware_alone(setup: TrainingSetup) -> None:
    """HFU is MFU without recomputation, and more with it; the model's work stays."""
    found = {one: replace(setup, recompute=one) for one in Recomputation}
    assert len({count_model_flops(one) for one in found.values()}) == 1
    assert count_hardware_flops(found[Recomputation.none]) == count_model_flops(setup)
    assert count_hardware_flops(found[Recomputation.full]) > count_model_flops(setup)


@given(setup=setups(), size=st.sampled_from([2, 4]))
def test_shards_hold_equal_parts_of_the_states(setup: TrainingSetup, size: int) -> None:
    """Over twice the ranks, half of the optimizer's state is left on each.

    With one stage: another stage may be the fullest one after that.
    """
    layout = replace(setup.layout, pipeline=1)
    setup = replace(setup, layout=layout)
    wider = replace(
        setup, layout=replace(layout, shard=size * layout.shard), global_batch=size * setup.global_batch
    )
    assert estimate_peak_memory(wider).optimizer == pytest.approx(
        estimate_peak_memory(setup).optimizer / size
    )


@given(gpus=st.integers(1, 100_000), more=st.integers(1, 100_000))
def test_more_gpus_fail_more_often(gpus: int, more: int) -> None:
    """The share that is lost grows with the number of GPUs, and stays below 1."""
    site = SiteRates()
    assert 0 < estimate_lost_time_share(gpus, site) <= estimate_lost_time_share(gpus + more, site) < 1


@given(setup=setups(), share=st.floats(0.4, 1.0))
def test_capped_gpus_are_slower_and_take_less_power(setup: TrainingSetup, share: float) -> None:
    """Computing slows down by no more than the power falls; what the peak is stays."""
    cap = share * setup.gpu.power_w
    slow = replace(setup, gpu=cap_gpu_power(setup.gpu, cap))
    before, after = predict_step_time(setup).total, predict_step_time(slow).total
    assert before <= after * (1 + 1e-9)
    assert after <= before / share * (1 + 1e-9)
    assert slow.gpu.power_w == cap
    assert slow.gpu.flops_fp16 == setup.gpu.flops_fp16


@given(setup=setups())
def test_plain_kernels_take_longer(setup: TrainingSetup) -> None:
    """They move more bytes for the same products."""
    assert predict_step_time(replace(setup, fused=False)).total >= predict_step_time(setup).total


@given(setup=setups())
def test_selective_recomputation_costs_what_it_saves(setup: TrainingSetup) -> None:
    """With flash attention, it is between all and nothing in memory, time and work."""
    flash = replace(setup, attention=AttentionKind.flash)
    none, some, full = (replace(flash, recompute=one) for one in Recomputation)
    assert (
        count_kept_activation_bytes(full)
        < count_kept_activation_bytes(some)
        < count_kept_activation_bytes(none)
    )
    assert predict_step_time(none).total <= predict_step_time(some).total <= predict_step_time(full).total
    assert count_hardware_flops(none) < count_hardware_flops(some) < count_hardware_flops(full)


def test_gpu_that_never_fails_loses_nothing() -> None:
    """Without failures nothing is saved, lost or repeated."""
    site = SiteRates(gpu_failures_per_day=0.0)
    bill = estimate_training_bill(GPUS["H200"], 8, step_s=2.0, steps=1800, rates=site)
    assert bill.lost_share == 0
    assert bill.gpu_hours == pytest.approx(8)


SEARCHED = TrainingSetup(
    shape=TransformerShape(hidden=4096, layers=32, heads=32, vocab=32000),
    gpu=GPUS["A100-40"],
    layout=Layout(replicate=64),
    sequence=2048,
    global_batch=64,
)


def test_search_finds_layouts_that_fit_in_order_of_time() -> None:
    """All fit, on all GPUs; less memory costs more time along the front."""
    found = sort_fitting_setups(
        map(estimate_memory_and_step_time, list_candidate_setups(SEARCHED, 256, ParallelWords()))
    )
    assert found
    assert all(one.fits and one.setup.gpus == 64 for one in found)
    times = [one.time.total for one in found]
    assert times == sorted(times)
    front = select_pareto_optimal(found)
    assert front[0] == found[0]
    memory = [one.memory.expected for one in front]
    assert memory == sorted(memory, reverse=True)
    assert memory[-1] == min(one.memory.expected for one in found)


def test_search_keeps_what_is_given() -> None:
    """A micro batch and a recomputation that are given are those of every layout."""
    selective = Recomputation.selective
    tried = list_candidate_setups(SEARCHED, 256, ParallelWords(), micro_batch=2, recompute=selective)
    found = sort_fitting_setups(map(estimate_memory_and_step_time, tried))
    assert {(one.setup.micro_batch, one.setup.recompute) for one in found} == {(2, Recomputation.selective)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequence": 0}, "sequence=0"),
        ({"gpu": GPUS["V100"]}, "V100 cannot use bf16"),
        ({"layout": Layout(replicate=8, tensor=8), "global_batch": 8}, ""),
        ({"layout": Layout(tensor=64)}, "does not divide the 32 heads"),
        ({"layout": Layout(pipeline=64)}, "more than the 32 layers"),
        ({"global_batch": 63}, "--global-batch 63 cannot be shared out"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(changes: dict[str, object], words: str) -> None:
    """The error names the numbers; a setup whose numbers fit is made."""
    if not words:
        assert replace(SEARCHED, **changes).gpus == 64  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError, match=words):
        replace(SEARCHED, **changes)  # type: ignore[arg-type]


SMALL_BATCH = TrainingSetup(
    shape=TransformerShape(
        hidden=1024,
        layers=8,
        heads=8,
        kv_heads=4,
        vocab=5622,
        positions=2048,
        tied=False,
        swiglu=False,
        biases=False,
        dropout=True,
    ),
    gpu=GPUS["A100-40"],
    layout=Layout(),
    sequence=2048,
    global_batch=1,
    recompute=Recomputation.selective,
    attention=AttentionKind.eager,
)
"""As many bytes of tensors in its first layer as at the end, and other gaps between them."""


@example(setup=SMALL_BATCH, layers=8, stages=1)
@given(setup=setups(), layers=st.integers(8, 130), stages=st.sampled_from([1, 2]))
def test_uneven_stages_have_all_layers_and_the_first_the_most(
    setup: TrainingSetup, layers: int, stages: int
) -> None:
    """Stages differ by one layer for each group at most; the fullest is planned for."""
    shape = replace(setup.shape, layers=layers)
    setup = replace(setup, shape=shape, stages_per_rank=stages)
    held = [setup.count_stage_layers(stage) for stage in range(setup.layout.pipeline)]
    assert sum(held) == layers
    assert held == sorted(held, reverse=True)
    assert held[0] - held[-1] <= stages
    more = replace(setup, shape=replace(shape, layers=layers + 1))
    memory = estimate_peak_memory(setup)
    assert memory.expected <= estimate_peak_memory(more).expected
    for stage in {0, setup.layout.pipeline - 1}:
        for name, moment in list_peak_memory_candidates(setup, stage):
            assert moment.tensor_bytes + memory.context <= memory.expected, name
    assert predict_step_time(setup).total < predict_step_time(more).total


def test_search_finds_pipelines_that_do_not_divide_the_layers() -> None:
    """126 layers over 8 stages are 16 or 15 each: that layout is among those that fit."""
    wanted = Layout(tensor=8, pipeline=8, shard=8)
    like = TrainingSetup(
        shape=MODELS["llama3-405b"],
        gpu=GPUS["H100-SXM"],
        layout=wanted,
        sequence=8192,
        global_batch=512,
        attention=AttentionKind.flash,
    )
    tried = list_candidate_setups(like, 512, ParallelWords(), recompute=Recomputation.full)
    assert wanted in {
        setup.setup.layout for setup in sort_fitting_setups(map(estimate_memory_and_step_time, tried))
    }


def test_gpu_without_bfloat16_has_no_peak_in_it() -> None:
    """Of the catalogue that is the V100 alone; every other peak is a positive number."""
    assert [gpu.name for gpu in GPUS.values() if gpu.flops_bf16 is None] == ["V100"]
    for gpu in GPUS.values():
        assert min(gpu.flops_fp16, gpu.flops_fp32, gpu.flops_bf16 or 1) > 0


def test_gradients_of_replicas_that_are_whole_nodes_cross_the_network() -> None:
    """Each stage of a pipeline has its place in a node, so that its replicas are in other nodes."""
    gpu = GPUS["A100-80"]
    layout = Layout(replicate=2, pipeline=8)
    near = replace(SEARCHED, gpu=gpu, layout=layout, global_batch=16)
    far = replace(near, gpu=replace(gpu, network=gpu.network / 4))
    assert predict_step_time(far).exposed > predict_step_time(near).exposed
