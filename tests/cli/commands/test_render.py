"""Promises of `hpckit render`: a launch that waits for somebody to submit it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

TASK = ("experiment=command", "command=python train.py ${params.i}", "cluster=slurm")
MINE = """\
# @package _global_
command: python train.py ${word}
word: before
"""


def wait_for(shell: Any, launch: str) -> list[dict[str, Any]]:
    """Return the runs of `status --json` once all have ended."""
    while True:
        runs: list[dict[str, Any]] = json.loads(shell("status", "--json", launch).out)["runs"]
        if all(run["state"] not in ("pending", "running") for run in runs):
            return runs
        time.sleep(0.1)


def render(shell: Any, *words: str, task: tuple[str, ...] = TASK) -> dict[str, Any]:
    """Render a task that appends its argument to a file, and return the JSON."""
    (shell.cwd / "train.py").write_text(
        "import os, sys\nopen(os.environ['HPCKIT_PROJECT'] + '/out.txt', 'a').write(sys.argv[1])\n"
    )
    said = shell("render", "--json", *task, *words)
    assert said.code == 0, said.err
    document: dict[str, Any] = json.loads(said.out)
    return document


def test_render_freezes_and_submits_nothing(slurm_shell: Any, fake_slurm: Any) -> None:
    """The folder is complete, no job exists, and nothing is recorded as submitted."""
    rendered = render(slurm_shell, "+params.i=1")
    folder = Path(rendered["dir"])
    assert [run["job"] for run in rendered["runs"]] == [None]
    assert rendered["jobs"] == []
    assert (folder / "launch.json").exists()
    assert slurm_shell.events(folder) == []
    assert fake_slurm.slurm("squeue", "--me", "--states=all", "--Format=Name:0|") == ""


def test_slip_in_a_file_of_ones_own_is_told(slurm_shell: Any) -> None:
    """A misspelt section would be read by nobody: the run would go on with what is usual."""
    folder = slurm_shell.cwd / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\ncommand: 'true'\nresorces: {nodes: 2}\n")
    said = slurm_shell("render", "experiment=mine", "code.snapshot=false")
    assert said.code == 0
    assert "hpckit does not read resorces" in said.err
    assert "did you mean resources?" in said.err


def test_render_names_scripts_that_end_in_sbatch(slurm_shell: Any) -> None:
    """Rendered scripts end in .sbatch, and plain output says how to submit each."""
    said = slurm_shell("render", "-m", *TASK, "+params.i=1,2", "resources.mem_gb=1,2")
    (folder,) = slurm_shell.outputs
    lines = [line.split()[1] for line in said.out.splitlines() if line.startswith("  sbatch ")]
    assert lines == [str(folder / "job-0.sbatch"), str(folder / "job-1.sbatch")]


@pytest.mark.slow
def test_rendered_script_run_by_hand_is_a_launch(slurm_shell: Any, fake_slurm: Any) -> None:
    """`sbatch FILE` starts the frozen run, and the other verbs know its job and its end."""
    rendered = render(slurm_shell, "-m", "+params.i=1,2")
    job = fake_slurm.slurm("sbatch", "--parsable", rendered["scripts"][0]).strip().split()[-1]
    runs = wait_for(slurm_shell, rendered["launch"])
    assert [run["state"] for run in runs] == ["completed", "completed"]
    assert [run["job"] for run in runs] == [f"{job}_0", f"{job}_1"]
    assert sorted((slurm_shell.cwd / "out.txt").read_text()) == ["1", "2"]


def test_edits_after_freezing_change_nothing(slurm_shell: Any, fake_slurm: Any) -> None:
    """Neither the code nor the configuration of a frozen run follows the project."""
    conf = slurm_shell.cwd / "conf" / "experiment"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text(MINE)
    rendered = render(slurm_shell, task=("experiment=mine", "cluster=slurm"))
    (conf / "mine.yaml").write_text(MINE.replace("before", "after"))
    (slurm_shell.cwd / "train.py").write_text("raise SystemExit(1)\n")
    fake_slurm.slurm("sbatch", rendered["scripts"][0])
    assert [run["state"] for run in wait_for(slurm_shell, rendered["launch"])] == ["completed"]
    assert (slurm_shell.cwd / "out.txt").read_text() == "before"
