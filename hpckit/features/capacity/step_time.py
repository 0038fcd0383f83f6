"""How long a training step takes: computing, waiting for memory, for links, for a pipeline. Pure.

A physical model with constants that hold for all models and GPUs; none is fitted to one run. Matrix
products take their operations at the GPU's reachable rate, less where a matrix is narrow. All else
that touches activations takes its bytes at the memory's rate. Sums within a tensor group wait;
gathering of sharded weights runs beside computing, and only the rest of it waits. Not modelled: how
a job's nodes share switches, slow ranks, data loading, checkpoints.

Sources: NCCL's cost of a ring, 2(n - 1)/n of the bytes at the link's rate (nccl-tests, PERFORMANCE.md); the
bubble of 1F1B (Narayanan et al. 2021, SC21). Operations are those of SC21 and of Korthikanti et al. 2022, for
a plain GPT 72BLsh²(1 + s/6h + V/12Lh) for the model; with full recomputation 96BLsh²(1 + s/6h + V/16Lh), with
selective 72BLsh²(1 + s/3h + V/12Lh). Attention is not halved for its mask. With flash attention, selective
recomputation computes it forward once more.
"""

from __future__ import annotations

from hpckit.features.capacity.activations import backward_regathers_inputs
from hpckit.features.capacity.memory import (
    count_layer_parameters,
    count_stage_parameters,
    count_state_bytes_per_parameter,
    count_state_shards,
)
from hpckit.features.capacity.model_plan import StepRates, StepTime
from hpckit.features.capacity.model_setup import (
    AttentionKind,
    LossKind,
    NumberType,
    Recomputation,
    TrainingSetup,
)


def count_model_flops(setup: TrainingSetup) -> float:
    """Return the operations that a step needs on all GPUs, whatever is computed again."""
    shape, tokens = setup.shape, setup.global_batch * setup.sequence
    matrices = 6 * (shape.layers * shape.active_layer_elements + shape.embedding_elements)
    return tokens * (matrices + 3 * _count_attention_flops(setup))


def count_hardware_flops(setup: TrainingSetup) -> float:
    """Return the operations that a step does on all GPUs, with what is computed again."""
    shape, tokens = setup.shape, setup.global_batch * setup.sequence
    flash = setup.attention is AttentionKind.flash
    again = {
        Recomputation.none: 0.0,
        Recomputation.selective: (1 if flash else 3) * _count_attention_flops(setup),
        Recomputation.full: 2 * shape.layers * shape.active_layer_elements + _count_attention_flops(setup),
    }
    return count_model_flops(setup) + tokens * again[setup.recompute]


def _count_attention_flops(setup: TrainingSetup) -> float:
    """Return the operations between a token and all others, forward, in all layers."""
    return 4.0 * setup.shape.layers * setup.sequence * setup.shape.query_width


def compute_attention_flops_share(setup: TrainingSetup) -> float:
    """Return the share of the model's operations that are between tokens, the mask not halved."""
    tokens = setup.global_batch * setup.sequence
    return 3 * tokens * _count_attention_flops(setup) / count_model_flops(setup)


def gpu_peak_flops(setup: TrainingSetup) -> float:
    """Return the operations per second that one GPU is said to reach."""
    if setup.precision is NumberType.fp32:
        return setup.gpu.flops_fp32
    return setup.gpu.flops_fp16


def compute_flops_utilization(flops: float, setup: TrainingSetup, step_s: float) -> float:
    """Return the share of all GPUs' peak that a step of `step_s` seconds reaches."""
    return flops / (step_s * setup.gpus * gpu_peak_flops(setup))


def estimate_shortest_step(setup: TrainingSetup) -> float:
    """Return the seconds that a step takes at least: its operations, at the peak of all GPUs.

    Attention is halved here: a kernel that knows the mask computes half of it.
    """
    masked = 1.5 * setup.global_batch * setup.sequence * _count_attention_flops(setup)
    return (count_model_flops(setup) - masked) / (setup.gpus * gpu_peak_flops(setup))


_PRODUCT_RATE = 0.88
"""Of the reachable rate, which is that of the best shape of matrices."""
_NARROW = 0.84
"""A product reaches half its rate when its narrowest side has this many times the elements that the
GPU computes with in the time in which memory moves a byte."""
_MEMORY_RATE = 0.8
_LINK_RATE = 0.8
_SCORES_RATE = 0.5
"""Products between positions are many small ones: this share of the rate of one large product."""
_ALL_SHARDED = 3
_LAUNCH_S = 5e-6
_KERNELS = 25
"""Kernels of a layer forward, each of which takes a few microseconds to launch."""
_BASE_LATENCY_S = 15e-6
_NEAR_HOP_S, _FAR_HOP_S = 3.4e-6, 14e-6
"""What a collective takes at least, and each of its hops within and between nodes (NCCL's own
tuning.cc, protocol Simple)."""
_DISTURBED = 0.25
"""Communication that runs beside computing slows it down by this share of its own time: both use
the same memory and multiprocessors."""


def compute_step_rates(setup: TrainingSetup, step_s: float) -> StepRates:
    """Return the rates of a step that takes `step_s` seconds, measured or predicted."""
    share, mfu = (
        compute_attention_flops_share(setup),
        compute_flops_utilization(count_model_flops(setup), setup, step_s),
    )
    return StepRates(
        step_s=step_s,
        mfu=mfu,
        hfu=compute_flops_utilization(count_hardware_flops(setup), setup, step_s),
        tokens_per_s_per_gpu=setup.global_batch * setup.sequence / step_s / setup.gpus,
        mfu_masked=mfu * (1 - share / 2),
        attention_share=share,
    )


def predict_step_time(setup: TrainingSetup) -> StepTime:
    """Return how long a step takes."""
    layers, count, stages = setup.max_stage_layers, setup.microbatches, setup.layout.pipeline
    others = setup.shape.layers - layers
    forward, backward = _estimate_layer_time(setup)
    waits = _estimate_tensor_parallel_wait(setup) + _estimate_context_parallel_wait(setup)
    if setup.recompute is Recomputation.full:
        waits *= 1.5
    head = _estimate_logits_and_loss_time(setup)
    one = layers * (forward + backward)
    sent = _estimate_pipeline_send_time(setup)
    # One micro batch fills and drains the stages; the slowest stage computes all of them.
    filling = others * (forward + backward + waits) + (stages - 1) * sent
    filling /= setup.stages_per_rank
    gathered = _estimate_weight_sharding_wait(setup, layers * forward, layers * backward)
    if stages == 1:
        gathered *= count
    return StepTime(
        compute=count * (one + head),
        exposed=count * (layers * waits + sent) + gathered + _estimate_replica_gradient_wait(setup, one),
        bubble=filling,
        optimizer=_estimate_optimizer_time(setup),
    )


def _reachable_flops(setup: TrainingSetup) -> float:
    return gpu_peak_flops(setup) * setup.gpu.reachable * setup.gpu.clock


def _estimate_matmul_time(setup: TrainingSetup, rows: float, inner: float, outer: float) -> float:
    """Return the seconds of a matrix product [rows, inner] x [inner, outer]."""
    narrowest, peak = min(rows, inner, outer), gpu_peak_flops(setup)
    half = _NARROW * peak / setup.gpu.bandwidth
    rate = _reachable_flops(setup) * _PRODUCT_RATE * narrowest / (narrowest + half)
    return 2 * rows * inner * outer / rate


def _estimate_gpu_memory_access_time(setup: TrainingSetup, moved: float) -> float:
    return moved / (setup.gpu.bandwidth * _MEMORY_RATE)


def _estimate_layer_time(setup: TrainingSetup) -> tuple[float, float]:
    """Return the seconds of a layer forward and backward, with what is computed again."""
    shape, cut, rows = setup.shape, setup.layout.tensor, setup.micro_batch_tokens_per_rank
    width, ffn = shape.hidden, shape.ffn_width / cut
    products = _estimate_matmul_time(setup, rows, width, (shape.query_width + 2 * shape.kv_width) / cut)
    products += _estimate_matmul_time(setup, rows, shape.query_width / cut, width)
    taken = rows * shape.active_experts
    grows = shape.ffn_matrices - 1
    products += _estimate_matmul_time(setup, taken, width, ffn * grows) + _estimate_matmul_time(
        setup, taken, ffn, width
    )
    core_forward, core_backward = _estimate_attention_time(setup)
    around = _estimate_gpu_memory_access_time(setup, rows * _count_elementwise_bytes(setup))
    launches = _KERNELS * _LAUNCH_S
    forward = max(launches, products + core_forward + around)
    backward = max(2 * launches, 2 * products + core_backward + 2 * around)
    if setup.recompute is Recomputation.full:
        backward += forward
    elif setup.recompute is Recomputation.selective:
        backward += core_forward + (around if setup.attention is AttentionKind.flash else 0.0)
    return forward, backward


def _estimate_attention_time(setup: TrainingSetup) -> tuple[float, float]:
    """Return the seconds between queries, keys and values, forward and backward."""
    shape, cut = setup.shape, setup.layout.tensor
    flops = 4.0 * setup.micro_batch_tokens_per_rank * setup.sequence * shape.query_width / cut
    if setup.attention is AttentionKind.flash:
        masked = flops / 2 / (gpu_peak_flops(setup) * setup.gpu.flash * setup.gpu.clock)
        return masked, 2.5 * masked
    scores = setup.micro_batch_tokens_per_rank * setup.sequence * shape.heads / cut
    size = setup.bytes_per_number
    touched = _estimate_gpu_memory_access_time(setup, scores * (4 * size + (1 if shape.dropout else 0)))
    product = flops / (_reachable_flops(setup) * _SCORES_RATE)
    return product + touched, 2 * product + touched


def _count_elementwise_bytes(setup: TrainingSetup) -> float:
    """Return the bytes that a token's norms, residuals, biases and functions read and write."""
    shape, size, cut = setup.shape, setup.bytes_per_number, setup.layout.tensor
    whole = cut if setup.sequence_parallel else 1
    residuals = 2 * (3 * size + (1 if shape.dropout else 0)) * shape.hidden
    norms = 4 * size * shape.hidden
    function = size * shape.ffn_matrices * shape.ffn_width * shape.active_experts
    heads = 2 * size * (shape.query_width + 2 * shape.kv_width)
    if not setup.fused:
        if shape.biases:  # torch's own norm is one kernel, in 32 bits, with a cast on either side
            norms += 16 * shape.hidden
        else:  # a norm without a shift is six kernels, most of them in 32 bits
            norms = 2 * (18 + 4 * size) * shape.hidden
        if shape.swiglu:
            function = 5 * size * shape.ffn_width * shape.active_experts
        if not shape.positions:  # rotary positions are computed in 32 bits, one by one
            heads = (12 + 4 * size) * shape.query_width + (12 + 6 * size) * shape.kv_width
    return (norms + residuals) / whole + (function + heads) / cut


def _estimate_logits_and_loss_time(setup: TrainingSetup) -> float:
    vocab = setup.shape.vocab / setup.layout.tensor
    products = 3 * _estimate_matmul_time(setup, setup.micro_batch_tokens_per_rank, setup.shape.hidden, vocab)
    passes = 9 if setup.loss_kind is LossKind.plain else 5
    return products + _estimate_gpu_memory_access_time(
        setup, setup.micro_batch_tokens_per_rank * vocab * passes * 4
    )


def _estimate_ring_collective_time(setup: TrainingSetup, size: int, inside: int, total: float) -> float:
    """Return the seconds in which a ring gathers `total` bytes, or sums and scatters them.

    Its `size` ranks are `inside` ranks apart. Members of one node share its networks: each of them has one.
    """
    if size == 1:
        return 0.0
    gpu = setup.gpu
    together = min(size, max(1, gpu.domain // inside))
    far = size // together - 1
    rate = gpu.link if size == together else min(gpu.link, together * gpu.network)
    hops = far * _FAR_HOP_S + (size - 1 - far) * _NEAR_HOP_S
    return _BASE_LATENCY_S + hops + (size - 1) / size * total / (rate * _LINK_RATE)


def _estimate_overlap_slowdown(communication: float, compute: float) -> float:
    """Return how much longer computing takes if communication runs beside it."""
    hidden = min(communication, compute)
    return communication - hidden + _DISTURBED * hidden


def _estimate_tensor_parallel_wait(setup: TrainingSetup) -> float:
    """Return how long a layer waits for its tensor group, forward and backward.

    That is for four sums, and for two inputs that are gathered again.
    """
    size = setup.layout.tensor
    total = setup.micro_batch_tokens_per_rank * setup.shape.hidden * setup.bytes_per_number
    return (4 * 2 + 2 * backward_regathers_inputs(setup)) * _estimate_ring_collective_time(
        setup, size, 1, total
    )


def _estimate_context_parallel_wait(setup: TrainingSetup) -> float:
    size = setup.layout.context
    total = size * setup.micro_batch_tokens_per_rank * 2 * setup.shape.kv_width / setup.layout.tensor
    return 3 * _estimate_ring_collective_time(
        setup, size, setup.layout.tensor, total * setup.bytes_per_number
    )


def _estimate_weight_sharding_wait(setup: TrainingSetup, forward: float, backward: float) -> float:
    """Return how long it takes to gather weights and to sum gradients beside computing, once."""
    layout = setup.layout
    shards = layout.data_size if setup.zero == _ALL_SHARDED else count_state_shards(layout)
    if shards == 1:
        return 0.0
    inside = layout.replica_size if setup.zero else layout.tensor
    layers, held = setup.max_stage_layers, count_layer_parameters(setup)
    gather = layers * _estimate_ring_collective_time(setup, shards, inside, held * setup.bytes_per_number)
    scatter = layers * _estimate_ring_collective_time(setup, shards, inside, held * 4)
    return _estimate_overlap_slowdown(gather, forward) + _estimate_overlap_slowdown(
        gather + scatter, backward
    )


def _estimate_replica_gradient_wait(setup: TrainingSetup, one: float) -> float:
    layout = setup.layout
    replicas = layout.replicate if setup.zero is None else layout.data_size
    if replicas == 1 or setup.zero == _ALL_SHARDED:
        return 0.0
    inside = layout.replica_size  # replicas are outermost: stages lie between their ranks, too
    shards = 1 if setup.zero is not None else count_state_shards(layout)
    held = count_stage_parameters(setup, 0) / shards
    room = one / 2 if shards == 1 else one / 4  # sums over shards take the rest
    return _estimate_overlap_slowdown(
        2 * _estimate_ring_collective_time(setup, replicas, inside, held * 4), room
    )


def _estimate_pipeline_send_time(setup: TrainingSetup) -> float:
    """Return how long a stage waits to send and receive a micro batch, both ways."""
    layout = setup.layout
    if layout.pipeline == 1:
        return 0.0
    sent = setup.micro_batch_tokens_per_rank * setup.shape.hidden * setup.bytes_per_number / layout.tensor
    beside = layout.tensor * layout.context * layout.shard
    near = beside * layout.pipeline <= setup.gpu.domain
    rate = (setup.gpu.link if near else setup.gpu.network) * _LINK_RATE
    return 2 * setup.stages_per_rank * (sent / rate + 2 * _BASE_LATENCY_S)


def _estimate_optimizer_time(setup: TrainingSetup) -> float:
    """Return the seconds in which all states are read and written once."""
    shards, data = count_state_shards(setup.layout), setup.layout.data_size
    per = count_state_bytes_per_parameter(setup.precision, setup.optimizer, setup.zero, shards, data)
    held = count_stage_parameters(setup, 0)
    touched = held * (per.weights + per.gradients + per.optimizer) / max(per.shards)
    return _estimate_gpu_memory_access_time(setup, 2 * touched)
