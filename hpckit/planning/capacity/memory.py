"""Bytes that a training run needs on a GPU of its fullest pipeline stage, by what they are. Pure.

Sources: states, Rajbhandari et al. 2020 (ZeRO) and torch's FSDP2; activations, Korthikanti et al.
2022, Table 2, taken apart into what each operation keeps; context, measurements of others of what
CUDA and the first collective take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpckit.model.capacity.parts import MemoryParts
from hpckit.model.capacity.setup import (
    AttentionKind,
    LossKind,
    NumberType,
    OptimizerKind,
    Recomputation,
    TrainingSetup,
)

_GIB = 2**30
_CUDA_CONTEXT = 0.7 * _GIB
_COLLECTIVES = 1.3 * _GIB
_FRAGMENTED = 0.04
_BUCKET = 500_000_000
"""Elements that ZeRO gathers at once, by DeepSpeed's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of states per parameter, and over how many ranks each is sharded."""

    weights: float
    gradients: float
    optimizer: float
    shards: tuple[int, int, int] = (1, 1, 1)


def state_bytes(
    precision: NumberType, optimizer: OptimizerKind, zero: int | None, shard: int, data: int
) -> StateBytes:
    """Return the states: over `shard` ranks of FSDP, or by a stage of ZeRO over `data` ranks."""
    moments = {OptimizerKind.adam: 8, OptimizerKind.adam8bit: 2, OptimizerKind.sgd: 4}[optimizer]
    if zero is not None:
        shards = tuple(data if zero >= stage else 1 for stage in (3, 2, 1))
        return StateBytes(weights=2, gradients=2, optimizer=4 + moments, shards=shards)  # type: ignore[arg-type]
    if precision is NumberType.bf16_pure:
        narrow = moments if optimizer is OptimizerKind.adam8bit else moments / 2
        return StateBytes(weights=2, gradients=2, optimizer=narrow, shards=(shard,) * 3)
    return StateBytes(weights=4, gradients=4, optimizer=moments, shards=(shard,) * 3)


def plan_memory(setup: TrainingSetup) -> MemoryParts:
    """Return the bytes of the fullest stage: the first or the last one."""
    stages = {0, setup.layout.pipeline - 1}
    return max((_stage(setup, stage) for stage in sorted(stages)), key=lambda one: one.expected)


def plan_states(
    held: float,
    precision: NumberType,
    optimizer: OptimizerKind,
    zero: int | None,
    shard: int,
    data: int,
) -> MemoryParts:
    """Return the states alone of a rank that holds this many elements before they are sharded."""
    return _states(held, state_bytes(precision, optimizer, zero, shard, data))


def _states(held: float, per: StateBytes) -> MemoryParts:
    weights, gradients, optimizer = per.shards
    return MemoryParts(
        weights=held * per.weights / weights,
        gradients=held * per.gradients / gradients,
        optimizer=held * per.optimizer / optimizer,
    )


def stage_parameters(setup: TrainingSetup, stage: int) -> float:
    """Return the elements of a rank of a stage before they are sharded over data ranks."""
    shape, tensor = setup.shape, setup.layout.tensor
    first, last = stage == 0, stage == setup.layout.pipeline - 1
    held = setup.layers_of(stage) * layer_parameters(setup)
    if first:
        held += shape.embedding_elements / tensor + shape.positions * shape.hidden
    if last:
        held += shape.norm_elements
        held += 0 if shape.tied and first else shape.embedding_elements / tensor
    return held


def layer_parameters(setup: TrainingSetup) -> float:
    """Return the elements that a rank of a tensor group has of a layer."""
    shape = setup.shape
    cut = shape.matrix_elements - shape.router_elements + shape.cut_biases
    return cut / setup.layout.tensor + shape.whole_elements + shape.router_elements


def _stage(setup: TrainingSetup, stage: int) -> MemoryParts:
    layout = setup.layout
    per = state_bytes(setup.precision, setup.optimizer, setup.zero, layout.shard, layout.data_size)
    if setup.zero is None and layout.pipeline > 1:
        # Gradients of all micro batches are added up before they are summed over shards.
        per = replace(per, shards=(layout.shard, 1, layout.shard))
    states = _states(stage_parameters(setup, stage), per)
    last = stage == layout.pipeline - 1
    activations = _layers_in_flight(setup, stage) * kept_bytes(setup)
    # While a layer is computed again, all that it would keep is there.
    activations += _all_bytes(setup, Recomputation.none) - kept_bytes(setup)
    logits = _logits(setup) if last else 0.0
    buffers = _buffers(setup)
    return MemoryParts(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=activations,
        logits=logits,
        buffers=buffers,
        context=_CUDA_CONTEXT + (_COLLECTIVES if setup.gpus > 1 else 0),
        fragmentation=_FRAGMENTED * (activations + logits + buffers),
    )


def _layers_in_flight(setup: TrainingSetup, stage: int) -> float:
    """Return how many layers' activations a stage keeps at once, under 1F1B."""
    stages, chunks = setup.layout.pipeline, setup.layers_of(stage)
    if setup.stages_per_rank > 1:
        extra = 1 + (stages - 1) / (stages * setup.stages_per_rank) if stage == 0 else 1.0
        return chunks * min(setup.microbatches, stages * extra if stage == 0 else 1.0)
    return chunks * min(setup.microbatches, stages - stage)


def kept_bytes(setup: TrainingSetup) -> float:
    """Return the bytes that a layer keeps for the backward pass, of one micro batch.

    A plain GPT in 16 bits keeps sbh(34 + 5as/h): its Table 2 with tensor and sequence parallelism.
    """
    return _all_bytes(setup, setup.recompute)


def _all_bytes(setup: TrainingSetup, recompute: Recomputation) -> float:
    shape, layout, size = setup.shape, setup.layout, setup.number_bytes
    cut = layout.tensor
    whole = cut if setup.sequence_parallel else 1
    width = float(shape.hidden)
    if recompute is Recomputation.full:
        return setup.tokens * size * width / whole
    if recompute is Recomputation.selective and setup.attention is AttentionKind.flash:
        return setup.tokens * size * _products(setup)
    masks = 2 * width if shape.dropout else 0.0
    inputs = 4 * size * width
    attention = size * (2 * shape.query_width + 2 * shape.kv_width)
    grown = size * shape.ffn_matrices * shape.ffn_width * shape.active_experts
    kept = (inputs + masks) / whole + (attention + grown) / cut
    if recompute is Recomputation.none and setup.attention is AttentionKind.eager:
        scores = shape.heads * setup.sequence
        kept += scores * (2 * size + (1 if shape.dropout else 0)) / cut
    return setup.tokens * kept


def _products(setup: TrainingSetup) -> float:
    """Return the elements per token of a layer's input and of the results of its products.

    The last product's result is counted: it becomes part of the next layer's input.
    """
    shape, cut = setup.shape, setup.layout.tensor
    whole = cut if setup.sequence_parallel else 1
    heads = shape.query_width + 2 * shape.kv_width
    grown = (shape.ffn_matrices - 1) * shape.ffn_width * shape.active_experts
    return 3 * shape.hidden / whole + (heads + grown) / cut


def _logits(setup: TrainingSetup) -> float:
    """Return the most bytes of the scores of all words, and of what the loss makes of them.

    Plain cross entropy has them as computed, its result, and the gradients of both, the last three
    in 32 bits: 14 bytes a score in bf16, 14.25 as measured with torch on a CPU. Compiled, it has
    them, their gradient, and one in 32 bits.
    """
    size = setup.number_bytes
    each = {LossKind.plain: size + 12, LossKind.compiled: 2 * size + 4, LossKind.in_place: size + 4}
    return setup.tokens * setup.shape.vocab / setup.layout.tensor * each[setup.loss_kind]


def _buffers(setup: TrainingSetup) -> float:
    """Return what gathering weights and summing gradients needs beside them.

    FSDP gathers a unit while another computes; in a pipeline, all units for all micro batches.
    """
    unit = layer_parameters(setup)
    if setup.zero is not None:
        return 2.0 * min(_BUCKET, unit * setup.stage_layers) if setup.zero else 0.0
    if setup.layout.shard == 1:
        return 0.0
    if setup.layout.pipeline > 1:
        return unit * setup.stage_layers * setup.number_bytes
    return unit * (2 * setup.number_bytes + 4)
