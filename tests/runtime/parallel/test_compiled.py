"""Compiled units compute what one process computes without compiling, in layouts of each kind.

One world of two gloo ranks trains the byte model with torch's own compiler for this machine.
"""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.training
def test_compiled_layout_computes_what_one_process_computes(tmp_path: Any, in_world: Any) -> None:
    """Losses, norms and each gradient of each rank, in float64 to 1e-12."""
    for found in in_world(tmp_path, CASES, ranks=RANKS):
        for name, one in found.items():
            assert "error" not in one, (name, one)
            assert one["graphs"] > 0, name
            assert one["loss"] <= 1e-12, (name, one)
            assert one["gradient"] <= 1e-12, (name, one)
            assert one["norm"] <= 1e-12, (name, one)
