"""Promises of launches with stages, with real runs here and scripts for a fake Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hpckit.batch.stage_gate import REFUSED
from hpckit.record.launches import load_launch

EXPERIMENT = """\
# @package _global_
name: pipeline
params: {x: 0}
stages:
  prepare: {once: true, overrides: ["command=[sh,-c,'echo $HPCKIT_STAGE > $HPCKIT_RUN_DIR/data']"]}
  train: {overrides: ["command=[sh,train.sh]"]}
  evaluate:
    overrides: ["command=[sh,-c,'cat $HPCKIT_STAGE_TRAIN_DIR/model']", resources.timeout_min=5]
  report:
    once: true
    after: afterany
    overrides: ["command=[sh,-c,'echo $HPCKIT_STAGE_TRAIN_RUNS > $HPCKIT_PROJECT/seen']"]
"""
TRAIN = """\
cat $HPCKIT_STAGE_PREPARE_DIR/data > $HPCKIT_RUN_DIR/model || exit 3
test $HPCKIT_RUN_INDEX = 1 || test -e $HPCKIT_PROJECT/mended
"""
WORDS = ("experiment=pipeline", "code.snapshot=false")
Sheller = Callable[..., Any]


def prepare(shell: Any) -> Any:
    """Put the experiment into the shell's project."""
    conf = shell.cwd / "conf" / "experiment"
    conf.mkdir(parents=True)
    (conf / "pipeline.yaml").write_text(EXPERIMENT)
    (shell.cwd / "train.sh").write_text(TRAIN)
    return shell


def runs(shell: Any) -> list[dict[str, Any]]:
    """Return the latest launch's runs."""
    found: list[dict[str, Any]] = json.loads(shell("status", "--json").out)["runs"]
    return found


@pytest.mark.slow
def test_local_stages_with_a_failing_middle_are_resumed(shell: Any) -> None:
    """What follows the failed run never begins, and says so; resumed, it goes on from there."""
    prepare(shell)
    said = shell("launch", "--wait", "-m", *WORDS, "cluster=local", "params.x=1,2")
    assert said.code == 1, said.err
    assert [(run["stage"], run["state"]) for run in runs(shell)] == [
        ("prepare", "completed"),
        ("train", "completed"),
        ("train", "failed"),
        ("evaluate", "completed"),
        ("evaluate", "cancelled"),
        ("report", "completed"),
    ]
    shown = shell("status").out
    assert "cancelled: stage evaluate, run 4: because stage train failed (run 2" in shown
    assert (shell.cwd / "seen").read_text() == "1-2\n"
    (shell.cwd / "seen").unlink()
    (shell.cwd / "mended").touch()
    said = shell("resume", "--wait")
    assert said.code == 0, said.out + said.err
    assert {run["state"] for run in runs(shell)} == {"completed"}
    assert [run["attempt"] for run in runs(shell)] == [1, 1, 2, 1, 1, 2]
    assert (shell.cwd / "seen").exists()


def test_scripts_of_stages_say_how_they_follow_each_other(slurm_shell: Any) -> None:
    """`render` prints what chains the scripts by hand, and each script says what it follows."""
    shell = prepare(slurm_shell)
    said = shell("render", "-m", *WORDS, "cluster=slurm", "params.x=1,2")
    assert said.code == 0, said.err
    lines = [line.strip() for line in said.out.splitlines() if "sbatch" in line]
    chained = "--kill-on-invalid-dep=yes"
    assert lines[0].startswith("JOB0=$(sbatch --parsable /")
    assert lines[1].startswith(f"JOB1=$(sbatch --parsable --dependency=afterok:$JOB0 {chained} /")
    assert lines[2].startswith(f"JOB2=$(sbatch --parsable --dependency=aftercorr:$JOB1 {chained}")
    assert lines[3].startswith(f"JOB3=$(sbatch --parsable --dependency=afterany:$JOB2 {chained}")
    launch = load_launch(shell.outputs[-1])
    assert "dependency" not in launch.paths.script(0).read_text()
    follows = "# Follows another stage: sbatch --dependency=aftercorr:$JOB1"
    assert follows in launch.paths.script(2).read_text()
    assert [job.resources.timeout for job in launch.jobs][1] is None
    assert [stage.name for stage in launch.stages] == ["prepare", "train", "evaluate", "report"]


@pytest.mark.slow
def test_run_submitted_by_hand_does_not_begin_before_what_it_follows(shell: Any) -> None:
    """Whoever forgets the dependency loses nothing: the run says what it wants, and ends."""
    prepare(shell)
    assert shell("render", *WORDS, "cluster=local").code == 0
    folder = str(shell.outputs[-1])
    said = shell("supervise", folder, "--job", "1")
    assert said.code == REFUSED
    assert ".0, which has not completed (pending)" in said.err
    assert not (shell.outputs[-1] / "runs").exists()
