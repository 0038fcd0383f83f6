"""How far off predictions are for published steps, row by row, and what a plan says of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hpckit.model.capacity.setup import Recomputation
from hpckit.planning.capacity.experience import experience_of
from hpckit.planning.capacity.gpus import GPUS
from hpckit.planning.capacity.power import capped
from hpckit.planning.capacity.request import CapacityRequest, plan_capacity

NO, SOME, ALL = Recomputation.none, Recomputation.selective, Recomputation.full


@dataclass(frozen=True, kw_only=True)
class Row:
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
            gpu=gpu if self.power_cap_w is None else capped(gpu, self.power_cap_w),
            gpus=self.gpus,
            model=self.model,
            parallel=(f"shard={self.shard}",),
            micro_batch=self.rows,
            sequence=self.sequence,
            recompute=self.recompute,
            fused=self.compiled,
        )
        found = plan_capacity(request).rates
        assert found is not None
        return found.tokens_per_s_per_gpu / self.tokens_per_s


def _row(name: str, tokens_per_s: float, gpus: int, rows: int, **others: object) -> Row:
    model, gpu, *shard = name.split()
    size = int(shard[0]) if shard else gpus
    values = {"model": model, "gpu": gpu, "gpus": gpus, "shard": size, "rows": rows}
    return Row(**values, tokens_per_s=tokens_per_s, **others)  # type: ignore[arg-type]


A100 = [
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
H100 = [
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


@pytest.mark.parametrize("row", [*A100, *H100], ids=lambda row: f"{row.model}-{row.gpu}")
def test_published_steps_with_sharded_weights_are_within_the_range_that_is_said(row: Row) -> None:
    """So that the days of a plan are a range that published runs had."""
    request = CapacityRequest(
        gpu=GPUS[row.gpu], gpus=row.gpus, model=row.model, parallel=(f"shard={row.shard}",)
    )
    plan = plan_capacity(request)
    assert plan.setup is not None
    found = experience_of(plan.setup)
    assert plan.experience == found
    assert found.low <= row.ratio <= found.high


@pytest.mark.parametrize("rows", [A100, H100], ids=["A100", "H100"])
def test_range_is_no_wider_than_the_published_rows(rows: list[Row]) -> None:
    """Its ends are those of the rows, give or take a point or two."""
    plan = plan_capacity(
        CapacityRequest(gpu=GPUS[rows[0].gpu], gpus=8, model="llama2-7b", parallel=("shard=8",))
    )
    assert plan.experience is not None
    ratios = [row.ratio for row in rows]
    assert plan.experience.low == pytest.approx(min(ratios), abs=0.015)
    assert plan.experience.high == pytest.approx(max(ratios), abs=0.015)


@pytest.mark.parametrize(
    ("gpu", "words", "said"),
    [
        ("A100-80", ("tensor=8",), "Megatron"),
        ("A100-80", ("shard=8",), "sharded weights on A100"),
        ("A100-40", ("shard=4", "tensor=2"), "sharded weights on A100"),
        ("H100-SXM", ("shard=8",), "sharded weights on H100"),
        ("H100-SXM", ("tensor=8",), "no published step of this layout on this GPU"),
        ("MI300X", ("shard=8",), "no published step of this layout on this GPU"),
    ],
)
def test_experience_is_of_layouts_like_the_planned_one(
    gpu: str, words: tuple[str, ...], said: str
) -> None:
    """Rows of Megatron say nothing of sharded weights, and the days are a range around the plan."""
    plan = plan_capacity(CapacityRequest(gpu=GPUS[gpu], gpus=8, model="llama2-7b", parallel=words))
    assert plan.experience is not None
    assert said in plan.experience.said
    assert plan.bill is not None
    assert plan.days_between is not None
    low, high = plan.days_between
    assert low == plan.bill.days * plan.experience.low
    assert low < high
