"""A run that was told to leave and may not begin again: everything that waits for it must know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Sandbox
from integration.training import Training
from tiers import thorough

pytestmark = [pytest.mark.slurm]

EXPERIMENT = """\
# @package _global_
name: pipeline
entry_point: keep:main
recovery: {restarts: {left: 0}}
params: {steps: 400}
stages:
  train:
    overrides: [resources.nodes=2]
  evaluate:
    overrides: ["entry_point=null", "command=[sh,-c,'touch $HPCKIT_RUN_DIR/evaluated']"]
"""
WORDS = ("launch", "experiment=pipeline", "cluster=sandbox", "code.snapshot=false")


@thorough
@pytest.mark.timeout(600)
def test_left_run_is_a_success_to_nobody_that_waits_for_it(sandbox: Sandbox, tmp_path: Path) -> None:
    """One SIGTERM to one rank, no restart left: next stage, `afterok` and next launch know."""
    training = Training.create(sandbox, tmp_path)
    project = training.project
    project.write("conf/experiment/pipeline.yaml", EXPERIMENT)
    job = project.json(*WORDS)["jobs"][0]
    outside = tmp_path / "outside.sh"
    outside.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-after-ok\n")
    follower = sandbox.slurm(
        *("sbatch", "--parsable", f"--chdir={tmp_path}", "--output=/dev/null"),
        *(f"--dependency=afterok:{job}", str(outside)),
    ).strip()
    training.wait_for_step(5)
    training.strike("term rank=0")

    def runs() -> list[dict[str, Any]]:
        return list(project.look()["runs"])

    training.wait(lambda: not {"pending", "running"} & {run["state"] for run in runs()}, "all over")
    train, evaluate = runs()
    assert (train["state"], evaluate["state"]) == ("failed", "cancelled")
    assert train["failure"]["cause"] == "left"
    assert "FAILED" in sandbox.slurm("scontrol", "show", "job", job)
    said = sandbox.slurm("squeue", "--noheader", "--format=%T %r", f"--jobs={follower}")
    assert said.split() == ["PENDING", "DependencyNeverSatisfied"]
    sandbox.slurm("scancel", follower)
    assert not list(tmp_path.rglob("ran-after-ok"))
    assert not list(tmp_path.rglob("evaluated"))
    again = project.json(*WORDS, "--dry-run")
    assert again["skipped"] == []
    assert len(again["runs"]) == 2
