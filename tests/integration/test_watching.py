"""What one sees of a run on a real Slurm: stacks, a table, a report, and a notice of its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from integration.conftest import Sandbox
from integration.project import Project

pytestmark = [pytest.mark.slurm]

WAITING = """
import time


def wait_for_the_boss(run):
    while not (run.folder / "go").exists():
        time.sleep(0.2)


def wait_for_the_others(run):
    wait_for_the_boss(run)


def main(config, run):
    for step in run.steps(2):
        run.log(step=step, loss=1.0)
        if step == 1:
            (wait_for_the_boss if run.rank == 0 else wait_for_the_others)(run)
    if run.rank == 0:
        raise ValueError("the boss said no")
"""
TELL = "#!/bin/sh\ncat >> {}\n"


@pytest.mark.timeout(300)
def test_run_on_two_nodes_is_seen_from_the_login_node(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacks of both nodes while it runs, and it runs on; then a report, and one notice."""
    project = Project(tmp_path / "project")
    project.create()
    project.write("wait.py", WAITING)
    told = tmp_path / "told.jsonl"
    project.write("tell", TELL.format(told))
    monkeypatch.setenv("HPCKIT_NOTIFY", f"exec:{project.folder / 'tell'}")
    words = ("cluster=sandbox", "entry_point=wait:main", "resources.nodes=2", "notify=ends")
    project.json("launch", *words, "resources.tasks_per_node=1", "code.snapshot=false")
    sandbox.wait_until(lambda: project.look()["runs"][0]["step"] is not None, "a step has begun")

    def both_wait() -> bool:
        text = json.dumps(project.json("stacks"))
        return "wait_for_the_boss" in text and "wait_for_the_others" in text

    sandbox.wait_until(both_wait, "both ranks wait")
    shown = project.hpckit("top", "--once")
    assert "running" in shown.stdout, shown.stderr
    run = project.look()["runs"][0]
    assert run["state"] == "running"
    (project.launch_folder() / "runs/00000/go").touch()
    (run,) = project.ended()["runs"]
    assert (run["state"], run["failure"]["message"]) == ("failed", "ValueError: the boss said no")
    report = tmp_path / "report.html"
    done = project.hpckit("report", "-o", str(report))
    assert done.returncode == 0, done.stderr
    assert "the boss said no" in report.read_text()
    sandbox.wait_until(lambda: told.exists() and "finished" in told.read_text(), "the notices have arrived")
    notices = [json.loads(line) for line in told.read_text().splitlines() if line.startswith("{")]
    kinds = sorted(notice["kind"] for notice in notices)
    assert kinds == ["failed", "finished"], notices
