"""Stages on a real Slurm: each waits for the one before, and a resume picks up where one failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Sandbox
from integration.project import Project

pytestmark = [pytest.mark.slurm]

EXPERIMENT = """\
# @package _global_
name: pipeline
params: {x: 0}
stages:
  prepare:
    once: true
    overrides: ["command=[sh,stage.sh,data]"]
  train:
    overrides: ["command=[sh,stage.sh,model]", resources.cpus_per_task=2]
  evaluate:
    overrides: ["command=[sh,stage.sh,score]"]
  report:
    once: true
    after: afterany
    overrides: ["command=[sh,stage.sh,page]"]
"""
STAGE = """\
case $HPCKIT_STAGE in
  train) cat $HPCKIT_STAGE_PREPARE_DIR/data || exit 3
    [ $HPCKIT_RUN_INDEX = 1 ] || [ -e $HPCKIT_PROJECT/mended ] || exit 5;;
  evaluate) cat $HPCKIT_STAGE_TRAIN_DIR/model || exit 3;;
  report) echo $HPCKIT_STAGE_EVALUATE_RUNS > $HPCKIT_RUN_DIR/seen;;
esac
echo $HPCKIT_STAGE >> $HPCKIT_RUN_DIR/$1
"""
WORDS = ("experiment=pipeline", "cluster=sandbox", "code.snapshot=false")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a fresh project with an experiment of four stages, whose second point fails."""
    fresh = Project(tmp_path / "project")
    fresh.folder.mkdir()
    fresh.write("conf/experiment/pipeline.yaml", EXPERIMENT)
    fresh.write("stage.sh", STAGE)
    fresh.create()
    return fresh


def states(project: Project) -> list[tuple[str, str]]:
    """Return stage and state of every run."""
    return [(run["stage"], run["state"]) for run in project.look()["runs"]]


@pytest.mark.main
@pytest.mark.timeout(600)
def test_stages_with_a_failing_middle_are_resumed_where_they_failed(
    sandbox: Sandbox, project: Project
) -> None:
    """What follows the failed run is cancelled with the reason; resumed, it all completes."""
    project.json("launch", "-m", *WORDS, "params.x=1,2")
    jobs = json.loads((project.launch_folder() / "launch.json").read_text())["jobs"]
    asked = [(job["resources"]["cpus_per_task"], job["after"]) for job in jobs]
    assert asked == [
        (1, []),
        (2, [{"job": 0, "kind": "afterok"}]),
        (1, [{"job": 1, "kind": "aftercorr"}]),
        (1, [{"job": 2, "kind": "afterany"}]),
    ]

    def ended() -> bool:
        return not {"pending", "running"} & {state for _, state in states(project)}

    sandbox.wait_until(ended, "all stages are over", patience_s=200)
    assert states(project) == [
        ("prepare", "completed"),
        ("train", "completed"),
        ("train", "failed"),
        ("evaluate", "completed"),
        ("evaluate", "cancelled"),
        ("report", "completed"),
    ]
    held = project.look()["runs"][4]["blocked"]
    assert held.startswith("stage train failed (run 2: exit_code")
    (project.folder / "mended").touch()
    resumed = project.json("resume")
    assert [run["index"] for run in resumed["runs"]] == [2, 4, 5]
    sandbox.wait_until(ended, "the rest is over", patience_s=200)
    assert {state for _, state in states(project)} == {"completed"}
    assert _lines(project, 0, "data") == ["prepare"]
    assert _lines(project, 1, "model") == ["train"]
    assert _lines(project, 4, "score") == ["evaluate"]
    assert _lines(project, 5, "page") == ["report", "report"]
    assert _lines(project, 5, "seen") == ["3-4"]


def _lines(project: Project, run: int, name: str) -> Any:
    return (project.launch_folder() / f"runs/{run:05d}" / name).read_text().split()
