"""Attention round a ring computes what one process computes, and holds no more with more ranks."""

from __future__ import annotations

from typing import Any

import pytest
from tiers import thorough

CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "all positions": {"is_causal": False},
    "sums far apart": {"far": True},
    "scaled": {"scale": 0.7},
    "grouped": {"enable_gqa": True, "key_lead": [2, 2]},
    "grouped, all positions": {"enable_gqa": True, "key_lead": [2, 1], "is_causal": False},
    "odd width": {"widths": [5, 5]},
    "other width of values": {"widths": [6, 9]},
    "narrower values, grouped": {"widths": [9, 6], "enable_gqa": True, "key_lead": [2, 2]},
    "no batch": {"lead": [4]},
    "no heads": {"lead": []},
    "shared by broadcasting": {"lead": [2, 3, 4], "key_lead": [2, 3, 1]},
    "strided": {"strided": True},
    "keys as values": {"shared": True},
    "frozen keys": {"learns": [True, False, True]},
    "frozen keys and values": {"learns": [True, False, False]},
    "frozen queries": {"learns": [False, True, True]},
    "without a kernel": {"plain": True},
    "without a kernel, grouped": {"plain": True, "enable_gqa": True, "key_lead": [2, 2]},
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, without a kernel": {"dtype": "bfloat16", "plain": True},
}
TOLERANCES = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 1e-2}
PARTS = {"short": {"part": 256}, "long": {"part": 1024}}


@pytest.fixture(
    scope="module", name="found", params=[pytest.param(2, marks=thorough), 3, pytest.param(4, marks=thorough)]
)
def found_fixture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, in_world: Any
) -> list[dict[str, Any]]:
    """Return what each rank of a world found, by case."""
    folder = tmp_path_factory.mktemp("ring")
    found: list[dict[str, Any]] = in_world(folder, CASES, ranks=request.param, program="ring_program.py")
    return found


@pytest.mark.training
@pytest.mark.parametrize("name", CASES)
def test_ring_attention_computes_what_one_process_computes(found: list[dict[str, Any]], name: str) -> None:
    """Output and gradients, in float64 to 1e-12; in other types by their digits."""
    case = CASES[name]
    dtype = case.get("dtype", "float64")
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["far"] <= TOLERANCES[dtype]
        assert one[name]["dtype"] == f"torch.{dtype}"
        assert one[name]["gradients"] == case.get("learns", [True] * 3)
