"""Runs that keep their state, disturbed on a real Slurm: what they lose, and what they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from integration.project import Project

pytestmark = pytest.mark.slurm

STEPS = 40

TRAIN = f"""
import os, time, torch
from torch.nn.parallel import DistributedDataParallel


def main(config, run):
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    run.state(model=model, optimizer=optimizer)
    for step in run.steps({STEPS}):
        mark = run.folder / "killed"
        if config.params.get("kill") == step and run.rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        time.sleep(0.15)
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
"""


@pytest.fixture
def project(tmp_path: Path) -> Any:
    """Return a project whose task keeps its state."""
    fresh = Project(tmp_path / "project")
    fresh.create()
    fresh.write("keep.py", TRAIN)
    return fresh


def launch(project: Any, *words: str) -> Path:
    """Launch on two nodes, saving every fifth step; return the run's folder."""
    project.json(
        *("launch", "experiment=function", "entry_point=keep:main", "cluster=sandbox"),
        *("resources.nodes=2", "checkpoint.interval_steps=5", *words),
    )
    folder: Path = project.launch_folder() / "runs" / "00000"
    return folder


def logged(folder: Path) -> list[list[tuple[int, float]]]:
    """Return step and loss of every line, by attempt."""
    attempts = sorted(folder.glob("attempts/*/metrics.jsonl"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in attempts]
    return [[(line["step"], line["loss"]) for line in attempt] for attempt in lines]


def undisturbed(project: Any, tmp_path: Path, *words: str) -> dict[int, float]:
    """Return the losses of the same run when nothing happens to it."""
    calm = Project(tmp_path / "calm" / "project")
    calm.folder.parent.mkdir()
    calm.create()
    calm.write("keep.py", TRAIN)
    folder = launch(calm, *words)
    assert calm.ended()["runs"][0]["state"] == "completed"
    assert project.folder != calm.folder
    return dict(logged(folder)[0])


@pytest.mark.main
def test_preemption_costs_no_step(sandbox: Any, project: Any, tmp_path: Path) -> None:
    """Preempted with a grace period: saved at the boundary, requeued, and not one step twice."""
    folder = launch(project, "resources.nodes=4", "resources.cpus_per_task=16")
    sandbox.wait_until(lambda: list(folder.glob("attempts/001/metrics.jsonl")), "it trains")
    sandbox.slurm(
        *("sbatch", "-p", "urgent", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    )
    sandbox.wait_until((folder / "attempts" / "002").exists, "it is requeued", patience_s=120)
    (run,) = project.ended()["runs"]
    assert (run["state"], run["attempt"]) == ("completed", 2), run
    first, second = logged(folder)
    assert [step for step, _ in first + second] == list(range(STEPS))
    assert len(second) < STEPS
    calm = undisturbed(project, tmp_path, "resources.nodes=4")
    assert dict(first + second) == calm


def test_killed_rank_costs_a_round_and_an_interval(
    sandbox: Any, project: Any, tmp_path: Path
) -> None:
    """SIGKILL of a rank on the second node: restored in the same allocation, same losses."""
    folder = launch(project, "+params.kill=17")
    (run,) = project.ended()["runs"]
    assert (run["state"], run["attempt"], run["round"]) == ("completed", 1, 1), run
    (lines,) = logged(folder)
    steps = [step for step, _ in lines]
    again = steps[steps.index(16) + 1]
    assert again in {10, 15}
    assert dict(lines) == undisturbed(project, tmp_path)
    assert sandbox.status()["state"] == "up"
