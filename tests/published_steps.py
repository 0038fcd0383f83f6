"""Published steps with sharded weights: what ran, and how many tokens per second a GPU took."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpckit.features.capacity.gpus import GPUS
from hpckit.features.capacity.model_plan import CapacityPlan
from hpckit.features.capacity.model_setup import AttentionKind, LossKind, Recomputation
from hpckit.features.capacity.power import cap_gpu_power
from hpckit.features.capacity.request import CapacityRequest, plan_capacity

MPT_SHAPES = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
"""Hidden, layers and heads of each model: scripts/train/yamls of llm-foundry."""
SHORT = 8192
"""Longer sequences are mostly attention, whose kernels were then half as fast as today's."""


@dataclass(frozen=True, kw_only=True)
class MptStep:
    """A measured step of llm-foundry with FSDP over all GPUs: tokens per second and GPU.

    Its loss is flash-attn's, which overwrites the scores (`loss_fn: fused_crossentropy`).
    """

    model: str
    gpu: str
    gpus: int
    sequence: int
    micro_batch: int
    microbatches: int
    recompute: Recomputation
    parameters: int
    tokens_per_s: int

    def planned(self) -> CapacityPlan:
        """Return the plan of this step, without torch.compile."""
        hidden, layers, heads = MPT_SHAPES[self.model]
        return plan_capacity(
            CapacityRequest(
                gpu=GPUS[self.gpu],
                gpus=self.gpus,
                model=f"hidden={hidden} layers={layers} heads={heads} vocab=50368 "
                f"positions={self.sequence} tied=true dropout=false",
                parallel=(f"shard={self.gpus}",),
                micro_batch=self.micro_batch,
                global_batch=self.micro_batch * self.microbatches * self.gpus,
                sequence=self.sequence,
                recompute=self.recompute,
                attention=AttentionKind.flash,
                fused=False,
                loss=LossKind.in_place,
            )
        )


def _mpt_steps() -> Iterator[MptStep]:
    with (Path(__file__).parent / "mpt_steps.csv").open() as file:
        for row in csv.DictReader(file):
            yield MptStep(
                model=row["model"],
                gpu=row["gpu"],
                gpus=int(row["gpus"]),
                sequence=int(row["sequence"]),
                micro_batch=int(row["micro_batch"]),
                microbatches=int(row["microbatches"]),
                recompute=Recomputation(row["recompute"]),
                parameters=int(row["parameters"]),
                tokens_per_s=int(row["tokens_per_s_per_gpu"]),
            )


MPT = [(step, step.planned()) for step in _mpt_steps()]
"""All rows in 16 bits of MosaicML's "MPT Training Benchmarks" (llm-foundry, commit 8c8dd48)."""


def ratio_of(step: MptStep, plan: CapacityPlan) -> float:
    """Return how many times as long as predicted a step took."""
    assert plan.rates is not None
    return plan.rates.tokens_per_s_per_gpu / step.tokens_per_s


NO, SOME, ALL = Recomputation.none, Recomputation.selective, Recomputation.full


@dataclass(frozen=True, kw_only=True)
class FsdpStep:
    """A published step with sharded weights: tokens per second and GPU."""

    model: str
    gpu: str
    gpus: int
    shard: int
    rows: int
    tokens_per_s: float
    sequence: int = 4096
    compiled: bool = False
    recompute: Recomputation = NO
    power_cap_w: float | None = None

    @property
    def ratio(self) -> float:
        """How many times as long as predicted a step took."""
        gpu = GPUS[self.gpu]
        request = CapacityRequest(
            gpu=gpu if self.power_cap_w is None else cap_gpu_power(gpu, self.power_cap_w),
            gpus=self.gpus,
            model=self.model,
            parallel=(f"shard={self.shard}",),
            micro_batch=self.rows,
            sequence=self.sequence,
            recompute=self.recompute,
            fused=self.compiled,
            loss=LossKind.compiled if self.compiled else LossKind.plain,
        )
        found = plan_capacity(request).rates
        assert found is not None
        return found.tokens_per_s_per_gpu / self.tokens_per_s


def _row(name: str, tokens_per_s: float, gpus: int, rows: int, **others: object) -> FsdpStep:
    model, gpu, *shard = name.split()
    size = int(shard[0]) if shard else gpus
    values = {"model": model, "gpu": gpu, "gpus": gpus, "shard": size, "rows": rows}
    return FsdpStep(**values, tokens_per_s=tokens_per_s, **others)  # type: ignore[arg-type]


FSDP_A100 = [
    _row("llama2-7b A100-80 8", 3700, 128, 2),
    _row("llama2-70b A100-80", 370, 128, 2, recompute=ALL),
    # Of torch.compile only the MFU was published: the tokens are in its proportion.
    _row("llama2-7b A100-80 8", 3700 * 0.68 / 0.57, 128, 2, compiled=True),
    _row("llama2-70b A100-80", 370 * 0.55 / 0.50, 128, 2, recompute=ALL, compiled=True),
    _row("llama2-13b A100-80", 2162, 64, 2),
    _row("llama2-13b A100-80", 1904, 64, 2, recompute=SOME),
    _row("llama2-70b A100-80", 353, 64, 2, recompute=ALL),
    _row("llama2-70b A100-80", 355, 64, 1, recompute=SOME),
    _row("llama3-8b A100-80", 2973, 64, 1, sequence=8192, recompute=SOME),
    _row("llama3-70b A100-80", 331, 64, 1, sequence=8192, recompute=ALL),
]
"""The first four: PyTorch's blog, 13 March 2024 ("Maximizing training throughput using PyTorch
FSDP") and its successor with torch.compile. The others: torchtitan's docs/performance.md, at commit
0413364; its selective recomputation computes every second product again, and ours none."""

CAPPED = {"sequence": 8192, "recompute": SOME, "power_cap_w": 500}
FSDP_H100 = [
    _row("llama2-7b H100-SXM 8", 7500, 96, 2),
    _row("llama2-70b H100-SXM", 800, 96, 2, recompute=ALL),
    _row("llama2-7b H100-SXM 8", 7500 * 0.45 / 0.37, 464, 2, compiled=True),
    _row("llama2-70b H100-SXM", 800 * 0.38 / 0.34, 464, 2, recompute=ALL, compiled=True),
    _row("llama3-8b H100-SXM", 5762, 8, 2, **CAPPED),
    _row("llama3-8b H100-SXM", 6667, 8, 2, compiled=True, **CAPPED),
    _row("llama3-8b H100-SXM", 5605, 128, 2, **CAPPED),
    _row("llama3-8b H100-SXM", 6514, 128, 2, compiled=True, **CAPPED),
]
"""The first four: as for A100. The others: torchtitan's benchmarks of December 2024, Tables 1
and 3."""
