"""Ranks that train the same registered model, each alone, are told."""

from __future__ import annotations

import pytest
from runtime.conftest import Workshop, ranks
from tiers import thorough

from hpckit.model.launch import Checkpoint
from hpckit.model.states import RunState

pytestmark = pytest.mark.training

TRAINS = """
import sys, torch, hpckit
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
run = hpckit.attach()
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
{make}
optimizer = torch.optim.Adam(model.parameters())
run.state(model=model, optimizer=optimizer)
for step in run.steps(6):
    loss = model(torch.ones(2, 4)).sum()
    {train}
    run.log(loss=run.mean(loss))
"""
STEP = "optimizer.zero_grad(); loss.backward(); {between}; optimizer.step()"
REDUCED = "[dist.all_reduce(parameter.grad) for parameter in model.parameters()]"
SENT = "(dist.send if run.rank else dist.recv)(torch.ones(1), 1 - run.rank)"
ALONE = "its ranks used no collective in 6 steps: each trains the same model alone"


def told(shop: Workshop, code: dict[str, str]) -> list[str]:
    """Return what is warned of in a run of this script on two ranks, which completes."""
    parts = {"make": "", "train": STEP.format(between="pass")} | code
    started = {"entry_point": None, "command": "python task.py"}
    settings = ranks(2, checkpoint=Checkpoint(interval_steps=2), **started)
    ended = shop.attempt(TRAINS.format(**parts), **settings)
    assert ended.record.state is RunState.completed, ended.output
    return list(ended.record.warnings)


def test_ranks_that_train_one_model_alone_are_told_once(workshop: Workshop) -> None:
    """A script without DistributedDataParallel completes; hpckit's own collectives do not count."""
    (words,) = told(workshop, {})
    assert ALONE in words


@pytest.mark.parametrize(
    "code",
    [
        pytest.param({"make": "model = DistributedDataParallel(model)"}, id="DDP"),
        pytest.param({"make": "fully_shard(model)"}, id="FSDP", marks=thorough),
        pytest.param({"train": STEP.format(between=REDUCED)}, id="by hand", marks=thorough),
        pytest.param({"train": STEP.format(between=SENT)}, id="sends", marks=thorough),
        pytest.param({"train": ""}, id="evaluates", marks=thorough),
        pytest.param({"make": "sys.modules['horovod'] = sys"}, id="horovod", marks=thorough),
    ],
)
def test_ranks_that_train_together_or_not_at_all_are_not_told(
    workshop: Workshop, code: dict[str, str]
) -> None:
    """Gradients that are shared by any means, and evaluations, are no slip."""
    assert not [words for words in told(workshop, code) if ALONE in words]
