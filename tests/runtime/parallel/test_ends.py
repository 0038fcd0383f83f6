"""What stands outside of units is sharded and cut as units are, and trains as in one process.

One world of two gloo ranks trains a model with a large embedding and a large head.
"""

from __future__ import annotations

from typing import Any

import pytest
from byte_model import LENGTH
from tiers import in_tiers

RANKS, ROWS, WORDS = 2, 8, 256
FSDP = {"layout": {"shard": 2}}
SHARDED: dict[str, dict[str, Any]] = {
    "called": FSDP,
    "called twice": FSDP,
    "read": FSDP,
    "read first": FSDP,
    "tied": FSDP,
    "added to": FSDP,
    "listed": FSDP,
    "unused": FSDP,
    "read, accumulated": {**FSDP, "parallel": {"microbatches": 2}},
    "read, offloaded": {**FSDP, "parallel": {"offload": True}},
    "read first, recomputed": {**FSDP, "parallel": {"recompute": "blocks"}},
    "read, context": {"layout": {"context": 2}},
    "read, bf16": {**FSDP, "parallel": {"params": "bf16"}},
}
TENSOR: dict[str, Any] = {"layout": {"tensor": 2}}
CUT: dict[str, dict[str, Any]] = {
    "called, tensor": TENSOR,
    "called, tensor without sequence": {**TENSOR, "parallel": {"sequence": False}},
    "called, tensor, accumulated": {**TENSOR, "parallel": {"microbatches": 2}},
    "called, tensor, own loss": {**TENSOR, "own": True},
    "called, tensor, recomputed": {**TENSOR, "parallel": {"recompute": "blocks"}},
    "capped, tensor": TENSOR,
    "added to, tensor": TENSOR,
    "shifted, tensor": TENSOR,
    "tied, tensor": TENSOR,
    "called, tensor, bf16": {**TENSOR, "parallel": {"params": "bf16"}},
}
SHARDED |= CUT
CASES = {name: {"way": name.partition(",")[0], **case} for name, case in SHARDED.items()}
USUAL = (
    *("called, tensor", "capped, tensor", "called, tensor, own loss", "called, tensor, bf16"),
    *("called", "added to", "read first, recomputed", "read, bf16", "tied", "listed"),
)
NEEDED = USUAL
PROGRAM = "ends_program.py"


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(CASES, USUAL))
def test_large_ends_train_as_in_one_process(found: list[dict[str, Any]], name: str) -> None:
    """However their parameters are used: by calling them, or by reading them elsewhere."""
    tolerance = 3e-2 if name.endswith("bf16") else 1e-12
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["loss"] <= tolerance
        assert one[name]["gradient"] <= tolerance


@pytest.mark.training
def test_sharded_embedding_and_head_are_not_gathered_beside_units(found: list[dict[str, Any]]) -> None:
    """Only the head as its own gradient comes; a tied weight serves both ends, and stays."""
    for one in found:
        assert one["called"]["gathered"] == [["head", "norm"], ["norm"]]
        assert one["tied"]["gathered"] == [["head", "norm", "tokens"]]


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(CUT, CUT.keys() & set(USUAL)))
def test_logits_of_a_cut_vocabulary_are_never_whole(found: list[dict[str, Any]], name: str) -> None:
    """No rank makes a tensor of their size, unless forward or a loss of one's own needs them."""
    logits = ROWS * LENGTH * WORDS // (2 if "accumulated" in name else 1)
    whole = name.startswith("shifted") or name.endswith("own loss")
    for one in found:
        assert one[name]["largest"] == (logits if whole else logits // RANKS)
