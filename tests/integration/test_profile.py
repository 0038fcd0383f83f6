"""A profile of two nodes on a real Slurm, asked for from the login node."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.conftest import Sandbox
from integration.project import Project
from tiers import thorough

pytestmark = [pytest.mark.slurm]

TRAINING = """
import time

import torch
import torch.distributed as dist


def main(config, run):
    for step in run.steps(100000):
        total = torch.ones(64, 64) @ torch.ones(64, 64)
        dist.all_reduce(total)
        time.sleep(0.05)
        stop = torch.tensor([int((run.folder / "go").exists())])
        dist.all_reduce(stop)
        if stop.item():
            break
"""


@thorough
@pytest.mark.timeout(300)
def test_two_nodes_are_profiled_from_the_login_node(sandbox: Sandbox, tmp_path: Path) -> None:
    """Both traces are there, with their nodes; the run continues, and completes."""
    project = Project(tmp_path / "project")
    project.create()
    project.write("training.py", TRAINING)
    words = ("cluster=sandbox", "entry_point=training:main", "resources.nodes=2")
    project.json("launch", *words, "resources.tasks_per_node=1", "code.snapshot=false")
    sandbox.wait_until(lambda: project.look()["runs"][0]["step"] is not None, "a step has begun")
    found = project.json("profile", "--ranks", "all", "--steps", "3")
    assert [(one["rank"], one["steps"]) for one in found["ranks"]] == [(0, 3), (1, 3)]
    assert len({one["node"] for one in found["ranks"]}) == 2
    for one in found["ranks"]:
        assert Path(one["trace"]).stat().st_size == one["bytes"]
        assert one["summary"]["communication_s"] > 0
    assert project.look()["runs"][0]["state"] == "running"
    shown = project.hpckit("profile", "--last")
    assert "operators of all CPU threads" in shown.stdout, shown.stderr
    (project.launch_folder() / "runs/00000/go").touch()
    (run,) = project.ended()["runs"]
    assert run["state"] == "completed"
