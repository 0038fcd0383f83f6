"""Promises of the end of a script that leaves its process group itself, as most scripts do."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_worlds import start_ranks
from tiers import thorough

pytestmark = pytest.mark.training

TRAIN = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hpckit


def train(run):
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    run.state(model=model)
    for step in run.steps(2):
        model(torch.ones(8, 64)).sum().backward()


if __name__ == "__main__":
    train(hpckit.attach())
    if "leave" in sys.argv:
        dist.destroy_process_group()
"""


@pytest.mark.parametrize("words", [("leave",), pytest.param((), marks=thorough)])
def test_ranks_end_however_the_group_is_left(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A model that had the group last waited for gloo's thread, which waited for Python's lock.

    It took a quick end: one of three such worlds stood still for ever.
    """
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    for _ in range(6):
        ends = start_ranks(script, 2, *words)
        assert [end.code for end in ends] == [0, 0], ends
