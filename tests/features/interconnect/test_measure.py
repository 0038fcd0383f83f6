"""What ranks measure of each other, on real process groups of this machine's CPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from experiments.conftest import start
from tiers import thorough

from hpckit.features.interconnect.model import CommOperation, InterconnectMeasurement
from hpckit.model.plain import from_plain
from hpckit.record.layout import RunPaths

pytestmark = pytest.mark.training
ENTRY = "hpckit.features.interconnect.measure:measure"
JOINING = [one for one in CommOperation if not one.copies_between_host_and_gpu]


def measured(folder: Path, ranks: int, **asked: Any) -> InterconnectMeasurement:
    """Return what so many ranks of one node measured."""
    start({"entry_point": ENTRY, "seed": 0, "comm_bench": asked}, ranks, folder)
    return from_plain(InterconnectMeasurement, json.loads(RunPaths(folder).interconnect.read_text()))


@thorough
def test_every_operation_of_gloo_is_measured_and_right(tmp_path: Path) -> None:
    """Each has its sizes, its ranks agree, and copies to a GPU are said to be missing."""
    found = measured(tmp_path, 3, smallest=1024, largest=4096, time_s=20.0)
    assert (found.backend, found.device, found.ranks, found.node_count) == ("gloo", "cpu", 3, 1)
    for operation in found.operations:
        if operation.operation in JOINING:
            assert [each.size for each in operation.times] == [1024, 2048, 4096]
            assert all(0 < each.fastest_s <= each.seconds for each in operation.times)
            assert (operation.wrong_ranks, operation.missing, operation.ended) == ((), "", "")
        else:
            assert operation.missing == "ranks use no GPU"
    assert found.search is not None
    assert "fewer than three nodes" in found.search.why_not


def test_time_that_is_spent_ends_all_operations_alike(tmp_path: Path) -> None:
    """The bound is kept, every rank stops at the same size, and the reason is told."""
    found = measured(tmp_path, 2, smallest=1024, largest=2**32, time_s=1.0, operations=["all_reduce"])
    (only,) = found.operations
    assert only.ended
    assert only.times
    assert found.seconds < 10
