"""What stands outside of units is sharded and cut as units are, and trains as in one process.

One world of two gloo ranks trains a model with a large embedding and a large head.
"""

from __future__ import annotations

from typing import Any

import pytest
from tiers import chosen, in_tiers

RANKS = 2
FSDP = {"layout": {"shard": 2}}
SHARDED: dict[str, dict[str, Any]] = {
    "called": FSDP,
    "called twice": FSDP,
    "read": FSDP,
    "read first": FSDP,
    "tied": FSDP,
    "listed": FSDP,
    "unused": FSDP,
    "read, accumulated": {**FSDP, "parallel": {"microbatches": 2}},
    "read, offloaded": {**FSDP, "parallel": {"offload": True}},
    "read first, recomputed": {**FSDP, "parallel": {"recompute": "blocks"}},
    "read, context": {"layout": {"context": 2}},
    "read, bf16": {**FSDP, "parallel": {"params": "bf16"}},
}
CASES = {name: {"way": name.partition(",")[0], **case} for name, case in SHARDED.items()}
USUAL = ("called", "read first, recomputed", "read, bf16", "tied", "listed")


@pytest.fixture(scope="module", name="found")
def found_fixture(
    tmp_path_factory: pytest.TempPathFactory, in_world: Any, request: pytest.FixtureRequest
) -> list[dict[str, Any]]:
    """Return what each rank found, by case."""
    folder, cases = tmp_path_factory.mktemp("ends"), chosen(request, CASES, needed=USUAL)
    found: list[dict[str, Any]] = in_world(folder, cases, ranks=RANKS, program="ends_program.py")
    return found


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
def test_sharded_embedding_and_head_are_not_gathered_beside_units(
    found: list[dict[str, Any]],
) -> None:
    """Neither in the forward nor in the backward pass; a tied weight serves both ends, and is."""
    for one in found:
        assert one["called"]["gathered"] == [["norm"]]
        assert one["tied"]["gathered"] == [["head", "norm", "tokens"]]
