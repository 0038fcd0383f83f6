"""A rank alone pays for no others: no collective, whose first one takes 0.55 GiB with NCCL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

USUAL = {"params": "fp32", "recompute": "none", "microbatches": 1}
CASES: dict[str, dict[str, Any]] = {
    "usual": USUAL,
    "bf16": {**USUAL, "params": "bf16"},
    "recomputed": {**USUAL, "recompute": "blocks"},
    "pieces": {**USUAL, "microbatches": 2},
}


@pytest.mark.training
def test_rank_alone_sends_nothing(in_world: Any, tmp_path: Path) -> None:
    """Steps, evaluations, norms and means of one rank call no collective."""
    found = in_world(tmp_path, CASES, ranks=1, program="alone_program.py")[0]
    for name, one in found.items():
        assert (one["sent"], one["counted"]) == (0, 1), (name, one)
        assert one["mean"] == one["of"]
