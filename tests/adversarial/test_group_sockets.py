"""How many sockets a rank has for the groups that train, agree and save."""

from __future__ import annotations

from typing import Any

import pytest
from runtime.conftest import ranks, workshop  # noqa: F401  # workshop is a fixture

from hpckit.model.launch import Checkpoint

pytestmark = pytest.mark.training

COUNT = """
import os, torch
import torch.distributed as dist

def main(config, run):
    values = torch.nn.Linear(2, 2)
    run.state(values=values)
    for step in run.steps(4):
        dist.all_reduce(torch.ones(1))
    links = [os.path.join("/proc/self/fd", one) for one in os.listdir("/proc/self/fd")]
    run.log(sockets=sum(os.path.exists(one) and "socket" in os.readlink(one) for one in links))
"""
WORLD = 4


def sockets(workshop: Any, env: dict[str, str]) -> int:  # noqa: F811  # the fixture's value
    """Return how many sockets rank 0 has once it has trained, agreed and saved."""
    more = {"checkpoint": Checkpoint(interval_steps=2), "env": env}
    ended = workshop.attempt(COUNT, **ranks(WORLD, **more))
    assert ended.code == 0, ended.output
    return int(ended.record.metrics["sockets"])


def test_lazy_connections_leave_a_rank_few_sockets(workshop: Any) -> None:  # noqa: F811
    """A variable spares most of three meshes; training, agreeing and saving work all the same."""
    meshes = sockets(workshop, {})
    assert meshes >= 3 * (WORLD - 1)
    assert sockets(workshop, {"TORCH_GLOO_LAZY_INIT": "1"}) <= meshes - (WORLD - 1)
