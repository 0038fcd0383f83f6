"""Loops that do more than the usual train as in one process, or are told that they do not.

One world of two gloo ranks, in float64.
"""

from __future__ import annotations

from typing import Any

import pytest

COPIES, SHARD, TENSOR, PIPELINE = {"replicate": 2}, {"shard": 2}, {"tensor": 2}, {"pipeline": 2}
CONTEXT = {"context": 2}
TREE = {"parallel": {"reduce": "tree"}}
SAME: dict[str, dict[str, Any]] = {
    f"{loop}, {layout}": {"loop": loop, "layout": layout}
    for loop, layouts in (
        ("looks before clipping", (COPIES, SHARD, TENSOR)),
        ("looks after the step", (COPIES, SHARD, TENSOR)),
        ("skips a bad batch", (COPIES, SHARD, TENSOR)),
        ("adds beside a bad batch", (COPIES,)),
        ("freezes", (SHARD, TENSOR, PIPELINE)),
        ("skips targets of other rows", (SHARD, PIPELINE)),
    )
    for layout in layouts
} | {
    "adds beside a bad batch, tree": {"loop": "adds beside a bad batch", "layout": COPIES} | TREE,
    "unfreezes, tree": {"loop": "unfreezes", "model": "frozen", "layout": COPIES} | TREE,
    "unfreezes, sharded": {"loop": "unfreezes", "model": "frozen", "layout": SHARD},
    "unfreezes, stages": {"loop": "unfreezes", "model": "frozen", "layout": PIPELINE},
    "unfreezes, tensor": {"loop": "unfreezes", "model": "frozen", "layout": TENSOR},
    "unfreezes, context": {"loop": "unfreezes", "model": "frozen", "layout": CONTEXT},
    "freezes, context": {"loop": "freezes", "layout": CONTEXT},
    "skips a bad batch, context": {"loop": "skips a bad batch", "layout": CONTEXT},
}
OTHER_ROWS = "both need a row for each sample"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "freezes": ({"loop": "freezes", "layout": COPIES}, "have been frozen or unfrozen since"),
    "unfreezes": (
        {"loop": "unfreezes", "model": "frozen", "layout": COPIES},
        "have been frozen or unfrozen since run.parallelize",
    ),
    "unfreezes ends": (
        {"loop": "unfreezes ends", "model": "tied", "layout": PIPELINE},
        "been frozen or unfrozen since run.parallelize",
    ),
    "uneven rows": (
        {"loop": "uneven rows", "layout": COPIES},
        "data ranks have different numbers of rows of this batch",
    ),
    "uneven rows, sharded": (
        {"loop": "uneven rows", "layout": SHARD},
        "data ranks have different numbers of rows of this batch",
    ),
    "no rows": ({"loop": "no rows", "layout": SHARD}, "this data rank's batch has no rows"),
} | {
    f"{loop}, {layout}": ({"loop": loop, "layout": layout, **more}, OTHER_ROWS)
    for loop in ("targets of other rows", "evaluates targets of other rows")
    for layout, more in ((PIPELINE, {}), (TENSOR, {"parallel": {"microbatches": 2}}), (SHARD, {}))
}
CASES = SAME | {name: case for name, (case, _) in REFUSED.items()}
PROGRAM = "training_loop_program.py"


@pytest.mark.training
@pytest.mark.parametrize("name", SAME)
def test_loop_trains_as_in_one_process(found: list[dict[str, Any]], name: str) -> None:
    """Losses and norms of four steps, whatever the layout does with parameters in between."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["apart"] < 1e-9


@pytest.mark.training
@pytest.mark.parametrize("name", REFUSED)
def test_loop_that_would_compute_something_else_is_refused(found: list[dict[str, Any]], name: str) -> None:
    """On every rank, with what to do instead, and not a wrong loss."""
    for one in found:
        assert one[name].get("error") == "UsageError", one[name]
        assert REFUSED[name][1] in one[name]["message"]
        assert one[name]["hint"]
