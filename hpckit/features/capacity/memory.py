"""Bytes that a training run needs on a GPU of its fullest pipeline stage, by what they are. Pure.

What is there differs between the moments of a step: the loss has all activations and no gradients
yet, the optimizer has all gradients and no activations. Each moment is added up by itself, and the
fullest one is what a GPU needs. tests/runtime/parallel/test_memory.py measures it in each layout.

Sources: states, Rajbhandari et al. 2020 (ZeRO) and torch's FSDP2; context, measurements of others
of what CUDA and the first collective take.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hpckit.features.capacity.activations import (
    count_backward_working_bytes,
    count_column_parallel_input_bytes,
    count_copies_kept_by_norm,
    count_hidden_state_bytes,
    count_kept_activation_bytes,
    count_layer_activation_bytes,
    count_logits,
    count_peak_logit_bytes,
)
from hpckit.features.capacity.model_plan import MemoryParts
from hpckit.features.capacity.model_setup import NumberType, OptimizerKind, Recomputation, TrainingSetup
from hpckit.model.parallel.layout import Layout
from hpckit.values import dataclass, replace

_GIB = 2**30
_CUDA_CONTEXT = 0.75 * _GIB
"""With kernels and libraries, on an H100: docs/guides/gpu-check.md."""
_COLLECTIVES = 1.3 * _GIB
_FRAGMENTED = 0.04
_BUCKET = 500_000_000
"""Elements that ZeRO gathers at once, by DeepSpeed's default."""
_LARGE = 0.25
"""A table is sharded by itself from this share of a layer on (runtime/parallel/sharding.py)."""
_SUMMED = 4
"""Bytes of a gradient while it is summed over ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of states per parameter, and over how many ranks each is sharded."""

    weights: float
    gradients: float
    optimizer: float
    shards: tuple[int, int, int] = (1, 1, 1)


def count_state_bytes_per_parameter(
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


def estimate_peak_memory(setup: TrainingSetup) -> MemoryParts:
    """Return the bytes of the fullest stage, the first or the last one, at its fullest moment."""
    return find_peak_memory_moment(setup)[1]


def find_peak_memory_moment(setup: TrainingSetup) -> tuple[str, MemoryParts]:
    """Return the name of that moment, as `list_peak_memory_candidates` has it, and the bytes."""
    stages = sorted({0, setup.layout.pipeline - 1})
    moments = [moment for stage in stages for moment in list_peak_memory_candidates(setup, stage)]
    # Where gradients are gone, their place stays taken: see below.
    name, fullest = max(moments, key=lambda moment: moment[1].tensor_bytes - moment[1].gradients)
    worked = max(one.activations + one.logits + one.buffers for _, one in moments)
    summed = max(one.gradients for _, one in moments)
    return name, replace(
        fullest,
        context=_CUDA_CONTEXT + (_COLLECTIVES if setup.gpus > 1 else 0),
        # Gradients of the step before are free, in pieces that activations seldom fit into.
        fragmentation=_FRAGMENTED * worked + summed - fullest.gradients,
    )


def estimate_state_memory(held: float, per: StateBytes) -> MemoryParts:
    """Return the states alone of a rank that holds this many elements before they are sharded."""
    weights, gradients, optimizer = per.shards
    return MemoryParts(
        weights=held * per.weights / weights,
        gradients=held * per.gradients / gradients,
        optimizer=held * per.optimizer / optimizer,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageElements:
    """The parameters of a rank of a stage before they are sharded over data ranks.

    `embedding` is a tied head, too; `head` is that of the last stage otherwise. `rest` are learned
    positions and the last norm.
    """

    embedding: float
    layer: float
    layers: int
    head: float
    rest: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.embedding + self.layers * self.layer + self.head + self.rest


def count_stage_elements_by_part(setup: TrainingSetup, stage: int) -> StageElements:
    """Return the elements of a rank of a stage, part by part."""
    shape, table = setup.shape, setup.shape.embedding_elements / setup.layout.tensor
    first, last = stage == 0, stage == setup.layout.pipeline - 1
    positions = shape.positions * shape.hidden if first else 0
    return StageElements(
        embedding=table if first else 0,
        layer=count_layer_parameters(setup),
        layers=setup.count_stage_layers(stage),
        head=table if last and not (shape.tied and first) else 0,
        rest=positions + (shape.norm_elements if last else 0),
    )


def count_stage_parameters(setup: TrainingSetup, stage: int) -> float:
    """Return the elements of a rank of a stage before they are sharded over data ranks."""
    return count_stage_elements_by_part(setup, stage).total


def count_layer_parameters(setup: TrainingSetup) -> float:
    """Return the elements that a rank of a tensor group has of a layer."""
    shape = setup.shape
    cut = shape.layer_matrix_elements - shape.router_elements + shape.sharded_bias_elements
    return cut / setup.layout.tensor + shape.replicated_elements + shape.router_elements


def list_peak_memory_candidates(setup: TrainingSetup, stage: int) -> Iterator[tuple[str, MemoryParts]]:
    """Yield the tensors of a rank of a stage at the moments of a step that may be its fullest.

    Each has a name, of which the report has the words.
    """
    if setup.zero is not None:
        yield "", _estimate_deepspeed_memory(setup, stage)
        return
    own, hidden, kept = (
        _split_into_fsdp_units(setup, stage),
        count_hidden_state_bytes(setup),
        count_kept_activation_bytes(setup),
    )
    in_flight = _count_micro_batches_in_flight(setup, stage) * own.layers * kept
    waiting = in_flight - own.layers * kept  # those of other micro batches
    working = (
        count_layer_activation_bytes(setup, Recomputation.none) - kept + count_backward_working_bytes(setup)
    )
    at, buffers = (
        partial(_estimate_forward_backward_memory, setup, stage),
        partial(_estimate_fsdp_buffers, setup, own),
    )
    if stage == setup.layout.pipeline - 1:
        # The last norm keeps what it is given, the head what it makes of it.
        ending = (
            in_flight
            + (1 + count_copies_kept_by_norm(setup)) * hidden
            + count_column_parallel_input_bytes(setup)
        )
        scores = count_logits(setup) * setup.bytes_per_number
        yield "loss", at(0, ending, count_peak_logit_bytes(setup), own.rest * setup.bytes_per_number)
        yield "head", at(0, ending + hidden, scores, buffers(own.head, own.layer, 0))
    ready = own.head
    yield "last layer", at(ready, in_flight + working, 0, buffers(own.layer, own.layer, own.head))
    ready += (own.layers - 1) * own.layer
    passed = waiting + kept + working
    yield "first layer", at(ready, passed, 0, buffers(own.layer, own.embedding, own.layer))
    ready += own.layer
    yield "embedding", at(ready, waiting + hidden, 0, buffers(own.embedding, 0, own.layer))
    ready += own.embedding
    yield "end", at(ready, 0, 0, buffers(own.rest, 0, own.embedding))
    yield "optimizer", _estimate_optimizer_memory(setup, stage)


def _split_into_fsdp_units(setup: TrainingSetup, stage: int) -> StageElements:
    """Return the elements of a stage as they are gathered, and as their gradients are made.

    FSDP shards large tables by themselves; `rest` is gathered for a whole step.
    """
    own = count_stage_elements_by_part(setup, stage)
    is_tied = setup.shape.tied and own.embedding and stage == setup.layout.pipeline - 1
    if not _uses_fsdp(setup):  # no gradient waits for the end: a tied one is begun by the head
        tied = own.embedding if is_tied else 0
        return replace(own, embedding=own.embedding - tied, head=own.head + tied)
    least = _LARGE * own.layer
    alone = 0 if is_tied or setup.layout.pipeline > 1 else 1
    embedding = own.embedding * alone * (own.embedding >= least)
    head = own.head * alone * (own.head >= least)
    rest = own.total - own.layers * own.layer - embedding - head
    return replace(own, embedding=embedding, head=head, rest=rest)


def _uses_fsdp(setup: TrainingSetup) -> bool:
    """Return whether FSDP handles parameters; if not, DDP or nothing but its own backward pass."""
    layout = setup.layout
    sums = layout.data_size * layout.context > 1 and not layout.is_data_parallel
    return sums or setup.precision is NumberType.bf16


def count_state_shards(layout: Layout) -> int:
    """Return how many ranks states are sharded over; those of one sequence share them, too."""
    return layout.shard * layout.context


def _estimate_forward_backward_memory(
    setup: TrainingSetup, stage: int, ready: float, activations: float, logits: float, buffers: float
) -> MemoryParts:
    """Return what is there in the passes of a step; gradients are those of `ready` elements."""
    whole, shards = count_stage_parameters(setup, stage), count_state_shards(setup.layout)
    per = count_state_bytes_per_parameter(setup.precision, setup.optimizer, None, shards, 1)
    if setup.layout.pipeline > 1:
        # Gradients of all micro batches are added up before they are summed over shards.
        per = replace(per, shards=(shards, 1, shards))
    states = estimate_state_memory(whole, per)
    last, passed = stage == setup.layout.pipeline - 1, 0.0
    if not last:  # what stages give each other: results in flight, and the gradient of one of them
        passed = (_count_micro_batches_in_flight(setup, stage) + 1) * count_hidden_state_bytes(setup)
    return replace(
        states,
        gradients=states.gradients * (1 if setup.microbatches > 1 else ready / whole),
        activations=activations,
        logits=logits,
        buffers=buffers + _estimate_ddp_buffers(setup, stage) + passed,
    )


def _estimate_fsdp_buffers(
    setup: TrainingSetup, own: StageElements, unit: float, following: float, before: float
) -> float:
    """Return what FSDP has for a unit in the backward pass, and for those around it.

    The unit is gathered, and its gradients are there; the following one is being gathered, and what
    was summed of the one before is still held. Then its own gradients are copied to be summed.
    """
    size, shards = setup.bytes_per_number, count_state_shards(setup.layout)
    if not _uses_fsdp(setup):
        return 0.0
    if setup.layout.pipeline > 1:  # all units are gathered for all micro batches
        return own.total * size
    arriving = following * size if shards > 1 else 0
    computing = unit * 2 * size + before * _SUMMED
    summing = unit * (size + _SUMMED + _SUMMED / shards)
    standing = own.rest * 2 * size if unit != own.rest else 0
    return standing + arriving + max(computing, summing)


def _estimate_ddp_buffers(setup: TrainingSetup, stage: int) -> float:
    """Return DDP's copies of all gradients, which are there between steps, too."""
    copied = setup.layout.is_data_parallel and not _uses_fsdp(setup)
    return count_stage_parameters(setup, stage) * _SUMMED if copied else 0.0


def _estimate_optimizer_memory(setup: TrainingSetup, stage: int) -> MemoryParts:
    """Return what is there in the optimizer's step.

    torch's Adam works on all parameters at once, by default, and makes a root of each variance.
    """
    whole, shards = count_stage_parameters(setup, stage), count_state_shards(setup.layout)
    per = count_state_bytes_per_parameter(setup.precision, setup.optimizer, None, shards, 1)
    root = {OptimizerKind.adam: 2 if setup.precision is NumberType.bf16_pure else 4}
    roots = whole * root.get(setup.optimizer, 0) / shards
    return replace(estimate_state_memory(whole, per), buffers=roots + _estimate_ddp_buffers(setup, stage))


def _estimate_deepspeed_memory(setup: TrainingSetup, stage: int) -> MemoryParts:
    per = count_state_bytes_per_parameter(
        setup.precision, setup.optimizer, setup.zero, 1, setup.layout.data_size
    )
    layers = _count_micro_batches_in_flight(setup, stage) * setup.count_stage_layers(stage)
    again = count_layer_activation_bytes(setup, Recomputation.none) - count_kept_activation_bytes(setup)
    bucket = min(_BUCKET, count_layer_parameters(setup) * setup.max_stage_layers)
    return replace(
        estimate_state_memory(count_stage_parameters(setup, stage), per),
        activations=layers * count_kept_activation_bytes(setup) + again,
        logits=count_peak_logit_bytes(setup) if stage == setup.layout.pipeline - 1 else 0.0,
        buffers=2.0 * bucket if setup.zero else 0.0,
    )


def _count_micro_batches_in_flight(setup: TrainingSetup, stage: int) -> float:
    """Return of how many micro batches a stage keeps what a backward pass needs, under 1F1B."""
    stages = setup.layout.pipeline
    if setup.stages_per_rank > 1:
        extra = 1 + (stages - 1) / (stages * setup.stages_per_rank)
        return min(setup.microbatches, stages * extra if stage == 0 else 1.0)
    return min(setup.microbatches, stages - stage)
