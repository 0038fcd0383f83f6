"""A sweep over groups of resources on a real Slurm: an array for each, with what it asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration.project import Project

pytestmark = pytest.mark.slurm


def test_launch_makes_of_two_resource_groups_two_arrays(sandbox: Any, tmp_path: Path) -> None:
    """Every run completes with as many tasks as its group says, by its own word and by sacct's."""
    project = Project(tmp_path / "project")
    project.create()
    count = 'printf x >> "$HPCKIT_PROJECT/ranks-$HPCKIT_RUN_INDEX"'
    words = ("experiment=command", "cluster=sandbox", f"command=[sh,-c,'{count}']")
    printed = project.json(
        *("launch", "-m", *words, "resources=cpu,cpu_pair", "resources.cpus_per_task=1", "seed=1,2")
    )
    assert len(printed["jobs"]) == 2
    one, two = printed["jobs"]
    wanted = [f"{one}_0", f"{one}_1", f"{two}_0", f"{two}_1"]
    assert [run["job"] for run in printed["runs"]] == wanted
    status = project.ended()
    assert [run["state"] for run in status["runs"]] == ["completed"] * 4
    ranks = [len((project.folder / f"ranks-{index}").read_text()) for index in range(4)]
    assert ranks == [1, 1, 2, 2]

    def accounted() -> dict[str, str]:
        text = sandbox.slurm("sacct", "-nPX", "-o", "JobID,ReqCPUS", "-j", f"{one},{two}")
        return dict(line.split("|") for line in text.split())

    sandbox.wait_until(lambda: set(accounted()) >= set(wanted), "sacct knows the four runs")
    asked = accounted()
    assert [asked[job] for job in wanted] == ["1", "1", "2", "2"]
