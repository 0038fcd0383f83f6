"""Promises of `run.batches` together with `run.train_step`: real ranks, uneven shares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rank_worlds import start_ranks

pytestmark = pytest.mark.training

TRAIN = """
import json, torch
from torch.utils.data import TensorDataset

import hpckit
from hpckit import Plan

run = hpckit.attach()
numbers = torch.randn(37, 4, generator=torch.Generator().manual_seed(1))
batches = run.batches(TensorDataset(numbers, numbers.sum(1, keepdim=True)), batch_size=10)
model = run.parallelize(lambda: torch.nn.Sequential(torch.nn.Linear(4, 1)), Plan(units="*"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in run.steps(8):
    inputs, wanted = next(batches)
    loss = run.train_step(
        model, inputs, wanted, loss=torch.nn.functional.mse_loss, share=batches.share
    )
    optimizer.step()
    optimizer.zero_grad()
    losses.append(float(loss))
if run.is_main:
    print("losses", json.dumps(losses))
"""


def losses(folder: Path, world_size: int) -> list[float]:
    """Train on so many ranks; return the losses of the steps."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    end = start_ranks(script, world_size)[0]
    assert end.code == 0, end.output
    (line,) = (line for line in end.output.splitlines() if line.startswith("losses"))
    found: list[float] = json.loads(line.partition(" ")[2])
    return found


def test_number_of_ranks_changes_no_loss(tmp_path: Path) -> None:
    """Three ranks with 4, 3 and 3 rows learn what one learns, but for the rounding of sums."""
    alone = losses(tmp_path, 1)
    assert alone[-1] < alone[0] / 2
    assert losses(tmp_path, 3) == pytest.approx(alone, rel=1e-5, abs=1e-7)
