"""Bytes of activations: what a layer keeps for its backward pass, and what a loss makes of scores.

Pure. Sources: Korthikanti et al. 2022, Table 2, taken apart into what each operation keeps; torch's
own operations, as tests/runtime/parallel/test_memory.py measures them.
"""

from __future__ import annotations

from hpckit.features.capacity.model_setup import AttentionKind, LossKind, Recomputation, TrainingSetup
from hpckit.model.parallel.settings import SCHEDULES

_WIDE = 4
"""Bytes of a number in 32 bits."""


def count_kept_activation_bytes(setup: TrainingSetup) -> float:
    """Return the bytes that a layer keeps for the backward pass, of one micro batch.

    A plain GPT in 16 bits keeps sbh(34 + 5as/h), as in its Table 2.
    """
    return count_layer_activation_bytes(setup, setup.recompute)


def count_hidden_state_bytes(setup: TrainingSetup) -> float:
    """Return the bytes of the hidden states of a micro batch that a rank of a tensor group has."""
    whole = setup.layout.tensor if setup.sequence_parallel else 1
    return setup.micro_batch_tokens_per_rank * setup.bytes_per_number * setup.shape.hidden / whole


def count_column_parallel_input_bytes(setup: TrainingSetup) -> float:
    """Return the bytes of hidden states that layers in columns keep of an input: a rank's part.

    What is compiled, or computed again, keeps all of it (`runtime.parallel.tensor_parallel`); but a
    setup that interleaves more groups of layers than hpckit can is Megatron-LM's, which does not.
    """
    if backward_regathers_inputs(setup) or setup.stages_per_rank > max(SCHEDULES.values()):
        return count_hidden_state_bytes(setup)
    return setup.micro_batch_tokens_per_rank * setup.bytes_per_number * setup.shape.hidden


def backward_regathers_inputs(setup: TrainingSetup) -> bool:
    """Return whether the backward pass gathers the inputs of layers in columns again."""
    return setup.sequence_parallel and not setup.fused and setup.recompute is Recomputation.none


def count_copies_kept_by_norm(setup: TrainingSetup) -> float:
    """Return what a norm keeps beside its input and its result, in parts of its input.

    A norm without a shift is several operations unless it is compiled: it keeps what it scales,
    and in 16 bits its input in 32.
    """
    if setup.fused or setup.shape.biases:
        return 0.0
    return 1.0 if setup.bytes_per_number == _WIDE else 1 + _WIDE / setup.bytes_per_number


def count_layer_activation_bytes(setup: TrainingSetup, recompute: Recomputation) -> float:
    """Return what a layer keeps of one micro batch, in bytes, if this is computed again."""
    shape, size, ranks = setup.shape, setup.bytes_per_number, setup.layout.tensor
    if recompute is Recomputation.full:
        return count_hidden_state_bytes(setup)
    if recompute is Recomputation.selective and setup.attention is AttentionKind.flash:
        return setup.micro_batch_tokens_per_rank * size * _count_kept_elements_per_token(setup)
    cut = 2 + 2 * count_copies_kept_by_norm(setup) + (2 / size if shape.dropout else 0)
    inputs = cut * count_hidden_state_bytes(setup) + 2 * count_column_parallel_input_bytes(setup)
    attention = size * (2 * shape.query_width + 2 * shape.kv_width)
    results = shape.ffn_matrices if setup.fused else 2 * (shape.ffn_matrices - 1)
    grown = size * results * shape.ffn_width * shape.active_experts
    scores = 4.0 * shape.heads  # the logarithm of each sum
    if setup.attention is AttentionKind.eager:
        kept = 2 * size + (1 if shape.dropout else 0)
        scores = shape.heads * setup.sequence * kept if recompute is Recomputation.none else 0.0
    return inputs + setup.micro_batch_tokens_per_rank * (attention + grown + scores) / ranks


def _count_ffn_elements(setup: TrainingSetup) -> float:
    """Return the elements per token of what the matrices that widen make, on a rank."""
    shape = setup.shape
    wide = (shape.ffn_matrices - 1) * shape.ffn_width * shape.active_experts
    return wide / setup.layout.tensor


def count_backward_working_bytes(setup: TrainingSetup) -> float:
    """Return what a layer's backward pass has beside what was kept: its widest gradients."""
    return count_hidden_state_bytes(
        setup
    ) + setup.micro_batch_tokens_per_rank * setup.bytes_per_number * _count_ffn_elements(setup)


def _count_kept_elements_per_token(setup: TrainingSetup) -> float:
    """Return the elements per token of a layer's input and of the results of its products.

    The last product's result is counted: it becomes part of the next layer's input.
    """
    shape, cut = setup.shape, setup.layout.tensor
    whole = cut if setup.sequence_parallel else 1
    heads = shape.query_width + 2 * shape.kv_width
    return 3 * shape.hidden / whole + heads / cut + _count_ffn_elements(setup)


def count_logits(setup: TrainingSetup) -> float:
    """Return how many scores of words a rank computes for a micro batch."""
    return setup.micro_batch_tokens_per_rank * setup.shape.vocab / setup.layout.tensor


def count_peak_logit_bytes(setup: TrainingSetup) -> float:
    """Return the most bytes of the scores of all words, and of what the loss makes of them.

    Plain cross entropy has its result and the gradients of that and of the scores, all in 32 bits;
    the scores themselves are free by then, but a pipeline's schedule keeps them. Of a vocabulary
    that is cut over ranks it has them and their gradient, in 32 bits. Others get all scores on each
    rank: compiled they have them, their gradient, and one in 32 bits.
    """
    size, scores = setup.bytes_per_number, count_logits(setup)
    wide = size + (0 if size == _WIDE else _WIDE)
    match setup.loss_kind:
        case LossKind.plain if setup.layout.tensor > 1:
            return scores * (wide + _WIDE)
        case LossKind.plain:
            return scores * (3 * _WIDE + (size if setup.layout.pipeline > 1 else 0))
        case LossKind.compiled:
            return scores * setup.layout.tensor * (2 * size + _WIDE)
        case LossKind.in_place:
            return scores * setup.layout.tensor * (size + _WIDE)
