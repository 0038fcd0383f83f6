"""What models and losses do besides passing rows on: trained as in one process, or refused.

Each of these once trained something else in some layout, and nothing told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

COPIES, SHARD, TENSOR, PIPELINE = {"replicate": 2}, {"shard": 2}, {"tensor": 2}, {"pipeline": 2}
CONTEXT = {"context": 2}
SAME: dict[str, dict[str, Any]] = {
    "marked parameters, fsdp": {"model": "marked", "layout": SHARD},
    "marked parameters, tensor": {"model": "marked", "layout": TENSOR},
    "hooks, ddp": {"model": "masked", "layout": COPIES},
    "attention ahead, context": {"model": "attention ahead", "layout": CONTEXT},
    "terms of units, fsdp": {"model": "balanced", "layout": SHARD, "loss": "balance"},
    "terms of units, context": {"model": "balanced", "layout": CONTEXT, "loss": "balance"},
    "penalty, ddp": {"model": "plain", "layout": COPIES, "loss": "penalty"},
    "own head, tensor": {"model": "plain", "layout": TENSOR, "loss": "own head"},
    "running mean in the loss, tensor": {"model": "plain", "layout": TENSOR, "loss": "centred"},
    "unit left out, fsdp": {"model": "dropped", "layout": SHARD},
    "teacher that no gradient needs, fsdp": {"model": "plain", "layout": SHARD, "teacher": True},
    "counter of two bytes, fsdp": {"model": "counting", "layout": SHARD},
}
ALIKE: dict[str, dict[str, Any]] = {
    "running means, ddp": {"model": "averaging", "layout": COPIES},
    "running means, fsdp": {"model": "averaging", "layout": SHARD},
}
FOUR: dict[str, dict[str, Any]] = {
    "bad batch in pieces, hsdp": {
        "model": "plain",
        "layout": {"replicate": 2, "shard": 2},
        "parallel": {"microbatches": 2},
        "bad_batch": True,
    },
    "buffers of one stage, pipeline x fsdp": {
        "model": "counted ahead",
        "layout": {"pipeline": 2, "shard": 2},
    },
    "unit left out, pipeline x fsdp": {"model": "dropped", "layout": {"pipeline": 2, "shard": 2}},
}
ALONE: dict[str, dict[str, Any]] = {
    "unit left out": {"model": "dropped", "layout": {}},
    "running mean in the loss": {"model": "plain", "layout": {}, "loss": "centred"},
    "temperature": {"model": "plain", "layout": {}, "loss": "temperature"},
}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "penalty, pipeline": (
        {"model": "plain", "layout": PIPELINE, "loss": "penalty"},
        "of the model by itself, and only the last pipeline stage",
        "from forward",
    ),
    "terms of units, pipeline": (
        {"model": "balanced", "layout": PIPELINE, "loss": "balance"},
        "of the model by itself, and only the last pipeline stage",
        "from forward",
    ),
    "own head, ddp": (
        {"model": "plain", "layout": COPIES, "loss": "own head"},
        "that the model does not have: each rank would train its own",
        "let forward return",
    ),
    "own head, pair": (
        {"model": "plain", "layout": TENSOR, "loss": "own head, pair"},
        "their gradients would not be divided by the weight",
        "return a mean over rows",
    ),
    "temperature, ddp": (
        {"model": "plain", "layout": COPIES, "loss": "temperature"},
        "that the model does not have: each rank would train its own",
        "let forward return",
    ),
    "unit left out, ddp": (
        {"model": "dropped", "layout": COPIES},
        "got no gradient, and DDP waits for that of each parameter",
        "parallel=fsdp",
    ),
    "hooks, fsdp": ({"model": "masked", "layout": SHARD}, "has a hook on its gradient", "between"),
    "hooks, tensor": ({"model": "masked", "layout": TENSOR}, "has a hook on its gradient", "step"),
    "max_norm, fsdp": ({"model": "bounded", "layout": SHARD}, "max_norm=1", "after optimizer"),
    "max_norm, tensor": ({"model": "bounded", "layout": TENSOR}, "max_norm=1", "after optimizer"),
    "sparse, fsdp": ({"model": "sparse", "layout": SHARD}, "sparse=True", "leave sparse out"),
    "weight in a list, fsdp": (
        {"model": "listed", "layout": SHARD},
        "tokens.weight from before run.parallelize was used in forward",
        "self.tokens.weight",
    ),
    "another expert on each rank": (
        {"model": "mixture", "layout": SHARD},
        "gradients of different parameters",
        "set_reduce_scatter_unused_params",
    ),
    "another expert later": (
        {"model": "mixture", "layout": SHARD, "from_step": 1},
        "gradients of different parameters",
        "set_reduce_scatter_unused_params",
    ),
    "torch's attention module, context": (
        {"model": "packaged attention", "layout": CONTEXT},
        "multi_head_attention_forward attends to this rank's part",
        "scaled_dot_product_attention",
    ),
    "LBFGS, pipeline": (
        {"model": "plain", "layout": PIPELINE, "optimizer": "LBFGS"},
        "LBFGS compares all parameters with each other",
        "AdamW",
    ),
}
CASES = SAME | ALIKE | {name: case for name, (case, _, _) in REFUSED.items()}
PROGRAM = "model_habits_program.py"


@pytest.mark.training
@pytest.mark.parametrize("name", SAME)
def test_model_trains_as_in_one_process(found: list[dict[str, Any]], name: str) -> None:
    """The losses of three steps, in float64."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["apart"] < 1e-9


@pytest.mark.training
@pytest.mark.parametrize("name", ALIKE)
def test_all_ranks_have_one_model(found: list[dict[str, Any]], name: str) -> None:
    """What a forward pass keeps of a rank's own rows is that of the first rank everywhere."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["ranks_apart"] == 0.0


@thorough
@pytest.mark.training
@pytest.mark.parametrize(("ranks", "cases"), [(4, FOUR), (1, ALONE)], ids=["four", "alone"])
def test_model_of_other_worlds_trains_as_in_one_process(
    tmp_path: Path, in_world: Any, ranks: int, cases: dict[str, Any]
) -> None:
    """Replicas of shards sum in the last piece, stages differ, and one rank sums nothing."""
    program = str(Path(__file__).with_name(PROGRAM))
    for one in in_world(tmp_path, cases, ranks=ranks, program=program):
        for name in cases:
            assert "error" not in one[name], one[name]
            assert one[name]["apart"] < 1e-9


@pytest.mark.training
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_train_something_else_is_refused(found: list[dict[str, Any]], name: str) -> None:
    """On every rank, with what to do instead."""
    _, message, hint = REFUSED[name]
    for one in found:
        assert message in one[name].get("message", ""), one[name]
        assert hint in one[name]["hint"]
