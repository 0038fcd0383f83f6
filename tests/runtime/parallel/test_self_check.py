"""What shapes do not tell is found in the first step: units that compute something else when cut.

One world of two gloo ranks, with float32 numbers.
"""

from __future__ import annotations

from typing import Any

import pytest

TENSOR, CONTEXT = {"tensor": 2}, {"context": 2}
WRONG: dict[str, dict[str, Any]] = {
    "fixed heads": {"layout": TENSOR, "way": "fixed heads"},
    "fused": {"layout": TENSOR, "way": "fused"},
    "fused, without sequence": {"layout": TENSOR, "way": "fused", "parallel": {"sequence": False}},
    "by hand": {"layout": CONTEXT, "way": "by hand"},
    "shift": {"layout": CONTEXT, "way": "shift"},
    "shift, recomputed": {"layout": CONTEXT, "way": "shift", "parallel": {"recompute": "blocks"}},
    "fixed heads, bf16": {"layout": TENSOR, "way": "fixed heads", "parallel": {"params": "bf16"}},
}
OUTSIDE: dict[str, dict[str, Any]] = {
    name: {"layout": CONTEXT, "way": way, "parallel": settings}
    for name, way, settings in (
        ("counted places", "counted places", {}),
        ("counted places, bf16", "counted places", {"params": "bf16"}),
        ("shifted logits", "shifted logits", {"recompute": "blocks"}),
    )
}
RIGHT: dict[str, dict[str, Any]] = {
    f"{name}, {one['layout']}": one
    for name, one in {
        "plain tensor": {"layout": TENSOR, "way": ""},
        "without sequence": {"layout": TENSOR, "way": "", "parallel": {"sequence": False}},
        "plain context": {"layout": CONTEXT, "way": ""},
        "by hand": {"layout": TENSOR, "way": "by hand"},
        "shift": {"layout": TENSOR, "way": "shift"},
        "bf16 tensor": {"layout": TENSOR, "way": "", "parallel": {"params": "bf16"}},
        "bf16 context": {"layout": CONTEXT, "way": "", "parallel": {"params": "bf16"}},
        "dropout": {"layout": CONTEXT, "way": "dropout"},
        "drawn": {"layout": CONTEXT, "way": "drawn"},
        "counted, off": {"layout": CONTEXT, "way": "counted places", "parallel": {"self_check": False}},
        "counting": {"layout": TENSOR, "way": "counting"},
        "fixed heads, data": {"layout": {"shard": 2}, "way": "fixed heads"},
        "off": {"layout": TENSOR, "way": "fixed heads", "parallel": {"self_check": False}},
    }.items()
}
CASES = WRONG | OUTSIDE | RIGHT
PROGRAM = "self_check_program.py"


@pytest.mark.training
@pytest.mark.parametrize("name", WRONG)
def test_unit_that_computes_something_else_is_refused(found: list[dict[str, Any]], name: str) -> None:
    """On every rank, with the unit, the layout, how far off it is, and likely causes."""
    axis = next(iter(WRONG[name]["layout"]))
    for one in found:
        assert one[name].get("error") == "RunError", one[name]
        assert f"with {axis} 2 blocks.0 puts out something else" in one[name]["message"]
        assert "off by" in one[name]["message"]
        cause = "a fixed number of heads" if axis == "tensor" else "scaled_dot_product_attention"
        assert cause in one[name]["hint"]
        assert "parallel.self_check=false" in one[name]["hint"]


@pytest.mark.training
@pytest.mark.parametrize("name", OUTSIDE)
def test_positions_that_a_rank_counts_for_itself_are_refused(found: list[dict[str, Any]], name: str) -> None:
    """Outside of units, too: the commonest slip when an older model is given a context."""
    for one in found:
        assert one[name].get("error") == "RunError", one[name]
        assert (
            "with context 2 the model puts out something else for the parts of a sequence"
            in (one[name]["message"])
        )
        assert "index by `positions`" in one[name]["hint"]


@pytest.mark.training
@pytest.mark.parametrize("name", RIGHT)
def test_unit_that_computes_the_same_is_trained(found: list[dict[str, Any]], name: str) -> None:
    """Also in bf16, with dropout, with buffers that change, and where nothing is checked."""
    for one in found:
        assert "error" not in one[name], one[name]


@pytest.mark.training
def test_check_leaves_nothing_behind(found: list[dict[str, Any]]) -> None:
    """No hooks, no drawn numbers, and buffers as after two steps."""
    tensor, off = (f"{name}, {TENSOR}" for name in ("plain tensor", "off"))
    for one in found:
        assert one[f"counting, {TENSOR}"]["calls"] == [2.0, 2.0]
        assert one[tensor]["undrawn"]
        assert one[tensor]["hooks"] == one[off]["hooks"]
