"""Live bytes of training steps in every layout, beside what `hpckit plan` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planned_memory import LAYOUTS, LENGTHS, MIB, SIZES, case_of, length_case, planned_bytes
from tiers import in_tiers, thorough

from hpckit.model.parallel.layout import Layout

USUAL = ("ddp / words", "pipeline / words")
CASES = {f"{layout} / {size}": (layout, size) for layout in LAYOUTS for size in SIZES}
WITHIN = 0.1
LEAST = 8 * MIB
"""Of less than this, code and torch's own numbers are a tenth."""


def measure(in_world: Any, folder: Path, case: dict[str, Any]) -> dict[str, float]:
    """Return the bytes of the rank that needed the most."""
    ranks = Layout(**case["layout"]).world_size
    found = in_world(folder, {"one": case}, ranks=ranks, program="memory_program.py")
    return max((one["one"] for one in found), key=lambda one: one["step"])


@pytest.mark.parametrize("name", in_tiers(CASES, USUAL))
def test_bytes_of_a_step_are_those_planned(in_world: Any, tmp_path: Path, name: str) -> None:
    """What is kept for the backward pass, the most of a step and of an update: within 10 %."""
    case = case_of(*CASES[name])
    found, planned = measure(in_world, tmp_path, case), planned_bytes(case)
    ratios = {key: found[key] / planned[key] for key in planned if planned[key] > LEAST}
    assert set(ratios) >= {"step"}
    assert all(abs(ratio - 1) <= WITHIN for ratio in ratios.values()), (ratios, found["tensors"])


@thorough
def test_bytes_of_a_cut_sequence_grow_with_its_length(in_world: Any, tmp_path: Path) -> None:
    """32 times the positions keep 32 times the bytes, as planned, and no more."""
    kept = {}
    for length in LENGTHS:
        case = length_case(length)
        kept[length] = measure(in_world, tmp_path, case)["kept"]
        assert kept[length] == pytest.approx(planned_bytes(case)["kept"], rel=WITHIN)
    short, long = min(LENGTHS), max(LENGTHS)
    assert kept[long] / kept[short] == pytest.approx(long / short, rel=0.05)


@thorough
def test_bytes_of_a_position_do_not_grow_with_the_ranks(in_world: Any, tmp_path: Path) -> None:
    """Each rank has the keys and values of one other at a time, forward and backward."""
    of_two, of_four = length_case(4096), length_case(8192)
    of_four["layout"] = {"context": 4}
    two, four = (measure(in_world, tmp_path, case) for case in (of_two, of_four))
    for key in ("kept", "step"):
        assert four[key] == pytest.approx(two[key], rel=WITHIN)
