"""Floating-point operations of a training step, and the share of the peak that they are. Pure.

Sources: Narayanan et al. 2021 (SC21), and Korthikanti et al. 2022, whose formulas these are for a
plain GPT: 72BLsh²(1 + s/6h + V/12Lh) for the model; with full recomputation
96BLsh²(1 + s/6h + V/16Lh), with selective 72BLsh²(1 + s/3h + V/12Lh). Attention is not halved for
its mask. With flash attention, selective recomputation computes it forward once more.
"""

from __future__ import annotations

from hpckit.model.capacity.setup import AttentionKind, NumberType, Recomputation, TrainingSetup


def model_flops(setup: TrainingSetup) -> float:
    """Return the operations that a step needs on all GPUs, whatever is computed again."""
    shape, tokens = setup.shape, setup.global_batch * setup.sequence
    matrices = 6 * (shape.layers * shape.active_elements + shape.embedding_elements)
    return tokens * (matrices + 3 * _attention(setup))


def hardware_flops(setup: TrainingSetup) -> float:
    """Return the operations that a step does on all GPUs, with what is computed again."""
    shape, tokens = setup.shape, setup.global_batch * setup.sequence
    flash = setup.attention is AttentionKind.flash
    again = {
        Recomputation.none: 0.0,
        Recomputation.selective: (1 if flash else 3) * _attention(setup),
        Recomputation.full: 2 * shape.layers * shape.active_elements + _attention(setup),
    }
    return model_flops(setup) + tokens * again[setup.recompute]


def _attention(setup: TrainingSetup) -> float:
    """Return the operations between a token and all others, forward, in all layers."""
    return 4.0 * setup.shape.layers * setup.sequence * setup.shape.query_width


def attention_share(setup: TrainingSetup) -> float:
    """Return the share of the model's operations that are between tokens, the mask not halved."""
    tokens = setup.global_batch * setup.sequence
    return 3 * tokens * _attention(setup) / model_flops(setup)


def peak_flops(setup: TrainingSetup) -> float:
    """Return the operations per second that one GPU is said to reach."""
    if setup.precision is NumberType.fp32:
        return setup.gpu.flops_fp32
    return setup.gpu.flops_fp16


def utilization(flops: float, setup: TrainingSetup, step_s: float) -> float:
    """Return the share of all GPUs' peak that a step of `step_s` seconds reaches."""
    return flops / (step_s * setup.gpus * peak_flops(setup))


def shortest_step(setup: TrainingSetup) -> float:
    """Return the seconds that a step takes at least: its operations, at the peak of all GPUs.

    Attention is halved here: a kernel that knows the mask computes half of it.
    """
    masked = 1.5 * setup.global_batch * setup.sequence * _attention(setup)
    return (model_flops(setup) - masked) / (setup.gpus * peak_flops(setup))
