"""Promises to those who register torchdata's StatefulDataLoader as training state."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_worlds import start_ranks

pytest.importorskip("torchdata")
pytestmark = pytest.mark.training

TRAIN = """
import sys, warnings
from dataclasses import replace

import torch
warnings.simplefilter("ignore")  # of a name in torch that torchdata still uses
from torchdata.stateful_dataloader import StatefulDataLoader

import hpckit

run = hpckit.attach(checkpoint_dir="kept")
run.checkpoint = replace(run.checkpoint, interval_steps=1)
torch.manual_seed(1)
loader = StatefulDataLoader(range(40), batch_size=4, shuffle=True, num_workers=2)
run.state(loader=loader)
batches = None
for step in run.steps(int(sys.argv[1])):
    batches = batches or iter(loader)
    print("batch", step, next(batches).tolist())
"""


def batches(output: str) -> list[str]:
    """Return the lines that name batches."""
    return [line for line in output.splitlines() if line.startswith("batch")]


def test_loader_of_a_single_rank_continues_where_it_was(tmp_path: Path) -> None:
    """Its state is the run's then: two starts have the batches of one."""
    found = []
    for folder, starts in (("one", ["8"]), ("two", ["5", "8"])):
        script = tmp_path / folder / "train.py"
        script.parent.mkdir()
        script.write_text(TRAIN)
        ends = [start_ranks(script, 1, steps)[0] for steps in starts]
        assert all(end.code == 0 for end in ends), ends
        found.append([line for end in ends for line in batches(end.output)])
    assert found[0] == found[1]
    assert len(found[0]) == 8


def test_loader_of_several_ranks_is_refused(tmp_path: Path) -> None:
    """Its state would be rank 0's on every rank: the error says what to use."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ends = start_ranks(script, 2, "8")
    for end in ends:
        assert end.code == 1
        assert batches(end.output) == []
    # The rank that says so first may be gone before the other one has joined it.
    assert any("run.state(loader=…) got a StatefulDataLoader on 2 ranks" in end.output for end in ends)
