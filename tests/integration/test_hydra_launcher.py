"""An application written for hydra-submitit-launcher, unchanged, with hpckit's launcher on a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slurm

APPLICATION = """\
import os

import hydra


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(cfg):
    print(cfg.model.name, cfg.optim.lr, os.environ["SLURM_JOB_ID"])
    if cfg.lr == 0.2 and not os.path.exists("mended"):
        raise ValueError(f"{cfg.stamp}: boom")
    with open("seen.txt", "a") as file:
        file.write(f"{cfg.lr} {cfg.stamp} {os.environ['RANK']}\\n")
    return cfg.lr


if __name__ == "__main__":
    main()
"""
CONFIG = """\
defaults:
  - model: a
  - optim: adam
  - override hydra/launcher: submitit_slurm
  - _self_
lr: 0.1
stamp: ${now:%H%M%S%f}
hydra:
  launcher: {timeout_min: 5, partition: batch, array_parallelism: 2, mem_gb: 1, cpus_per_task: 1}
"""


@pytest.mark.main
def test_application_of_submitit_sweeps_and_resumes_the_failed_job_alone(sandbox: Any, project: Any) -> None:
    """An array with one failed element, in Slurm and in the record; resumed with frozen code and values."""
    project.write("app.py", APPLICATION)
    project.write("conf/config.yaml", CONFIG)
    project.write("conf/model/a.yaml", "name: a\n")
    project.write("conf/optim/adam.yaml", "lr: ${lr}\n")
    words = ["hydra/launcher=hpckit", "hydra.launcher.cluster=sandbox", "hydra.launcher.wait=true"]
    done = subprocess.run(
        [sys.executable, "app.py", "-m", *words, "hydra.sweep.dir=sweep", "lr=0.1,0.2,0.3"],
        cwd=project.folder,
        env={**os.environ, "HPCKIT_OUTPUTS": str(project.outputs)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "boom\non the node:\nTraceback" in done.stderr
    (launch,) = json.loads((project.folder / "sweep" / "hpckit.json").read_text())["launches"]
    status = project.look(launch["id"])
    assert [run["state"] for run in status["runs"]] == ["completed", "failed", "completed"]
    (array,) = {run["job"].partition("_")[0] for run in status["runs"]}
    states = sandbox.slurm("sacct", "-nXP", f"--jobs={array}", "--format=JobID,State,TimelimitRaw").split()
    assert states == [f"{array}_0|COMPLETED|5", f"{array}_1|FAILED|5", f"{array}_2|COMPLETED|5"]
    project.write("app.py", "raise SystemExit('edited since')\n")
    project.write("mended", "")
    resumed = project.json("resume", launch["id"], "--wait")
    assert [run["index"] for run in resumed["runs"]] == [1]
    assert [run["metrics"] for run in project.look(launch["id"])["runs"]] == [
        {"return_value": 0.1},
        {"return_value": 0.2},
        {"return_value": 0.3},
    ]
    seen = {line.split()[0]: line.split()[1] for line in _lines(project.folder / "seen.txt")}
    assert seen.keys() == {"0.1", "0.2", "0.3"}
    assert f"ValueError: {seen['0.2']}: boom" in done.stderr  # the stamp of the first attempt


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()
