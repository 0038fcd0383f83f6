"""Packed environments on two nodes of a real Slurm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from integration.conftest import Sandbox
from integration.project import Project
from tiers import thorough
from waiting import until

import hpckit

pytestmark = [pytest.mark.slurm, thorough]

TRAIN = """
import os, planted, torch, torch.distributed as dist


def main(config, run):
    value = torch.ones(1)
    for step in run.steps(6):
        dist.all_reduce(value)
        if step == 2 and run.round == 0 and run.rank == 1:
            os.kill(os.getpid(), 9)
        run.log(step=step, loss=planted.VALUE)
"""


@pytest.mark.parametrize("how", ["squashfs", "tar"])
def test_ranks_of_all_nodes_and_rounds_import_what_was_packed(
    sandbox: Sandbox, tmp_path: Path, how: str
) -> None:
    """Also where a rank is killed and the environment changes meanwhile; nothing stays on the nodes."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (library,) = venv.glob("lib/python*/site-packages")
    mine = Path(hpckit.__file__).parents[1]
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    (library / "theirs.pth").write_text(f"{mine}\n{packages}\n")
    (library / "planted.py").write_text("VALUE = 1.0\n")
    project = Project(tmp_path / "project")
    project.create()
    project.write("tiny.py", TRAIN)
    for name in sandbox.nodes:
        (tmp_path / "scratch" / name).mkdir(parents=True)
    done = project.hpckit(
        *("launch", "cluster=sandbox", "entry_point=tiny:main", "resources.timeout_min=3", "observe=off"),
        *("resources.nodes=2", "resources.tasks_per_node=2", "runtime.device=cpu", "code.snapshot=false"),
        *("+data=stage", f"data.environment={how}", "data.margin_gb=0", f"cluster.python={venv}/bin/python"),
        f"data.dir={tmp_path}/scratch/$SLURMD_NODENAME",
    )
    assert done.returncode == 0, done.stderr
    (library / "planted.py").write_text("VALUE = 2.0\n")
    status = project.ended()
    assert [run["state"] for run in status["runs"]] == ["completed"], project.hpckit("logs").stdout
    (launch,) = (path.parent for path in project.outputs.glob("*/launch.json"))
    (log,) = launch.glob("runs/*/attempts/*/agents.log")
    assert log.read_text().count("its own path") == 2
    staged = status["runs"][0]["staged"]
    assert [(one["name"], one["how"]) for one in staged] == [
        ("environment", "mounted" if how == "squashfs" else "copied")
    ] * 2
    rows = project.json("results")
    assert "2.0" not in str(rows)
    until(lambda: not list((tmp_path / "scratch").rglob("*.sqsh")))
    assert not list((tmp_path / "scratch").glob("*/hpckit-*/environments/job/*/venv"))
