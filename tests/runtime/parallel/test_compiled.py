"""Compiled units compute what one process computes without compiling, in layouts of each kind.

One world of two gloo ranks trains the byte model with torch's own compiler for this machine. What
every change runs traces units and their gradients, and leaves out what takes most of the time: to
generate and compile code.
"""

from __future__ import annotations

from typing import Any

import pytest
from tiers import in_tiers

RANKS = 2
COMPILED = {"compile": True}
LAYOUTS: dict[str, dict[str, int]] = {
    "ddp": {"replicate": 2},
    "fsdp": {"shard": 2},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
    "context": {"context": 2},
}
CASES: dict[str, dict[str, Any]] = {
    name: {"layout": layout, "parallel": COMPILED} for name, layout in LAYOUTS.items()
} | {
    f"{kind}, {name}": {"layout": LAYOUTS[name], "parallel": {**COMPILED, "recompute": kind}}
    for kind, name in (
        *(("blocks", name) for name in ("ddp", "fsdp", "tensor", "pipeline")),
        *(("selective", name) for name in ("fsdp", "pipeline")),
    )
}
NEEDED = ()
PROGRAM = "equality_program.py"
TRACED = {f"traced, {name}": {**CASES[name], "backend": "aot_eager"} for name in ("blocks, fsdp", "tensor")}
CASES |= TRACED


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(CASES, TRACED))
def test_compiled_layout_computes_what_one_process_computes(found: list[dict[str, Any]], name: str) -> None:
    """Losses, norms and each gradient of each rank, in float64 to 1e-12."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["graphs"] > 0
        assert one[name]["loss"] <= 1e-12
        assert one[name]["gradient"] <= 1e-12
        assert one[name]["norm"] <= 1e-12
