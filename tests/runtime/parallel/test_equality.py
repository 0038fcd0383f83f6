"""Every layout computes what one process computes: losses, gradients, norms, and evaluation.

One world of four gloo ranks trains a small transformer in one layout after the other.
"""

from __future__ import annotations

from typing import Any

import pytest
from byte_world import LAYOUTS
from tiers import in_tiers

RANKS = 4
ELEMENTS = 53_056

MORE: dict[str, dict[str, Any]] = {
    "tensor without sequence": {"layout": {"tensor": 4}, "parallel": {"sequence": False}},
    "GPipe": {"layout": {"pipeline": 4}, "parallel": {"schedule": "GPipe"}},
    "interleaved": {"layout": {"pipeline": 2, "shard": 2}, "parallel": {"schedule": "Interleaved1F1B"}},
    "recompute": {"layout": {"shard": 4}, "parallel": {"recompute": "blocks"}},
    "recompute, pipeline x tensor": {
        "layout": {"pipeline": 2, "tensor": 2},
        "parallel": {"recompute": "blocks"},
    },
    "recompute, context": {"layout": {"context": 2, "shard": 2}, "parallel": {"recompute": "blocks"}},
    "selective": {"layout": {"shard": 4}, "parallel": {"recompute": "selective"}},
    "selective, pipeline x tensor": {
        "layout": {"pipeline": 2, "tensor": 2},
        "parallel": {"recompute": "selective"},
    },
    "selective, context": {"layout": {"context": 2, "shard": 2}, "parallel": {"recompute": "selective"}},
    "selective, fsdp x tensor": {"layout": {"shard": 2, "tensor": 2}, "parallel": {"recompute": "selective"}},
    "offloaded": {"layout": {"shard": 4}, "parallel": {"offload": True}},
    "offloaded, ddp": {"layout": {"replicate": 4}, "parallel": {"offload": True}},
    "offloaded, pipeline x tensor": {"layout": {"pipeline": 2, "tensor": 2}, "parallel": {"offload": True}},
    "accumulated": {"layout": {"shard": 4}, "parallel": {"microbatches": 2}},
    "accumulated, ddp": {"layout": {"replicate": 4}, "parallel": {"microbatches": 2}},
    "uneven shares": {"layout": {"shard": 4}, "rows": 10},
    "uneven shares, ddp": {"layout": {"replicate": 4}, "rows": 6},
}
FEWER: dict[str, dict[str, Any]] = {
    "fewer, ddp": {"layout": {"replicate": 4}, "full": {"replicate": 8}, "rows": 16},
    "fewer, ddp, uneven": {"layout": {"replicate": 4}, "full": {"replicate": 6}, "rows": 6},
    "fewer, ddp, microbatches": {
        "layout": {"replicate": 4},
        "full": {"replicate": 8},
        "rows": 16,
        "parallel": {"microbatches": 2},
    },
    "fewer, hsdp": {"layout": {"replicate": 2, "shard": 2}, "full": {"replicate": 4, "shard": 2}, "rows": 14},
    "fewer, tensor": {
        "layout": {"replicate": 2, "tensor": 2},
        "full": {"replicate": 5, "tensor": 2},
        "rows": 10,
    },
    "fewer, pipeline": {
        "layout": {"replicate": 2, "pipeline": 2},
        "full": {"replicate": 4, "pipeline": 2},
        "rows": 16,
    },
    "fewer, pipeline x fsdp": {
        "layout": {"pipeline": 2, "shard": 2},
        "full": {"replicate": 2, "pipeline": 2, "shard": 2},
        "rows": 16,
    },
}
"""Rounds that have lost replicas. Uneven: a rank without a row for its second piece, too."""
SINGLE = {
    f"{name}, float32": {"layout": LAYOUTS[name], "dtype": "float32", "steps": 5}
    for name in ("ddp", "fsdp", "hsdp", "tensor", "fsdp x tensor", "pipeline", "context")
}
CASES = {name: {"layout": one} for name, one in LAYOUTS.items()} | MORE | FEWER | SINGLE
KINDS = ("ddp", "fsdp", "hsdp", "fsdp x tensor", "pipeline x fsdp", "context x fsdp")
NEEDED = KINDS
PROGRAM = "equality_program.py"
USUAL = (*KINDS, *("selective, context", "offloaded, pipeline x tensor", "fewer, pipeline x fsdp"))


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(CASES, USUAL))
def test_layout_computes_what_one_process_computes(found: list[dict[str, Any]], name: str) -> None:
    """Losses, norms and each gradient of each rank, in float64 to 1e-12.

    In float32 a gradient differs by what the processor's own order of sums makes of it.
    """
    exact = CASES[name].get("dtype") is None
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["loss"] <= (1e-12 if exact else 2e-6)
        assert one[name]["gradient"] <= (1e-12 if exact else 5e-6)
        assert one[name]["norm"] <= (1e-12 if exact else 2e-6)


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(LAYOUTS, LAYOUTS.keys() & set(USUAL)))
def test_every_parameter_is_on_some_rank_and_no_more_than_needed(
    found: list[dict[str, Any]], name: str
) -> None:
    """Ranks hold the whole model together, and what is sharded in equal parts."""
    layout = LAYOUTS[name]
    held = [one[name]["elements"] for one in found]
    copies = layout.get("replicate", 1)
    assert sum(held) >= ELEMENTS * copies
    if not {"tensor", "pipeline"} & layout.keys():
        assert held == [ELEMENTS * copies // RANKS] * RANKS


@pytest.mark.training
def test_evaluation_is_the_same_in_every_layout(found: list[dict[str, Any]]) -> None:
    """After the same steps, `evaluate` and `mean` give one number."""
    known = [one[name]["evaluated"] for one in found for name in one.keys() & LAYOUTS.keys()]
    assert len(known) >= RANKS * len(KINDS)
    assert max(known) - min(known) < 1e-6


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(FEWER, FEWER.keys() & set(USUAL)))
def test_lost_replicas_need_no_more_memory(found: list[dict[str, Any]], name: str) -> None:
    """No rank computes more rows at once than it would in the layout that was asked for."""
    full = FEWER[name]["full"]
    data_size = full.get("replicate", 1) * full.get("shard", 1)
    planned = -(-FEWER[name]["rows"] // data_size)
    largest = [max(one[name]["computed"], default=0) for one in found]
    assert 0 < max(largest) <= planned
