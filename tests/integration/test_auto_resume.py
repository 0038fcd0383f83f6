"""Auto-resume jobs on a real Slurm: a launch is resumed on the cluster, within its budgets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.project import Project
from tiers import thorough

pytestmark = pytest.mark.slurm

COMMAND = ("experiment=command", "cluster=sandbox", "code.snapshot=false")
LOSE = """\
pid='s/.*"attempt_started".*"pid":\\([0-9]*\\).*/\\1/p'
[ -e $HPCKIT_PROJECT/fixed ] && exit 0
kill -9 $(sed -n "$pid" $HPCKIT_ATTEMPT_DIR/events.jsonl)
sleep 60
"""


@pytest.fixture
def project(tmp_path: Path) -> Any:
    """Return a fresh project with a command that kills its own supervisor."""
    fresh = Project(tmp_path / "project")
    fresh.folder.mkdir()
    fresh.write("lose.sh", LOSE)
    fresh.create()
    return fresh


def command(project: Any) -> str:
    """Return the override that runs it."""
    return f"command=[sh,{project.folder / 'lose.sh'}]"


def queue(sandbox: Any, project: Any) -> list[str]:
    """Return the names of the launch's jobs that wait or run."""
    names = sandbox.slurm("squeue", "--noheader", "--format=%j").split()
    return [name for name in names if name.startswith(project.launch_folder().name)]


def logs(project: Any) -> str:
    """Return what all batch scripts printed, the auto-resume jobs' among them."""
    return "".join(path.read_text() for path in project.launch_folder().glob("logs/*"))


@pytest.mark.main
def test_auto_resume_job_resumes_a_run_whose_batch_host_lost_its_supervisor(
    sandbox: Any, project: Any
) -> None:
    """Nobody asks: the run that lost its supervisor is completed by its next attempt."""
    script = "command=[sh,-c,'until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.2; done']"
    launched = project.json("launch", "--auto-resume", *COMMAND, script)
    assert launched["auto_resume_job"] is not None

    def has_begun() -> bool:
        return project.look()["runs"][0]["round"] is not None

    sandbox.wait_until(has_begun, "the run has begun")

    def waits() -> bool:
        words = ("--noheader", "--format=%R", f"--jobs={launched['auto_resume_job']}")
        return "Dependency" in sandbox.slurm("squeue", *words)

    sandbox.wait_until(waits, "the auto-resume job waits for the run")
    first = project.launch_folder() / "runs/00000/attempts/001/events.jsonl"
    (supervisor,) = [
        json.loads(line)["pid"] for line in first.read_text().splitlines() if '"attempt_started"' in line
    ]
    os.kill(supervisor, signal.SIGKILL)

    def begins_again() -> bool:
        run = project.look()["runs"][0]
        return (run["attempt"], run["state"]) == (2, "running")

    sandbox.wait_until(begins_again, "the auto-resume job has resumed it", patience_s=200)
    (project.folder / "fixed").touch()
    sandbox.wait_until(lambda: not queue(sandbox, project), "nothing is queued", patience_s=200)
    assert project.look()["runs"][0]["state"] == "completed"
    assert "no run continues: this was the last auto-resume job" in logs(project)


@thorough
def test_auto_resume_job_stops_where_the_budget_does(sandbox: Any, project: Any) -> None:
    """A run that always loses its supervisor gets three attempts, and why there is no fourth."""
    project.json("launch", "--auto-resume", *COMMAND, command(project))
    sandbox.wait_until(lambda: not queue(sandbox, project), "nothing is queued", patience_s=280)
    (run,) = project.look()["runs"]
    assert run["attempt"] == 3
    assert run["state"] != "completed"
    assert "the same failure 3 times without getting further" in logs(project)


@thorough
def test_auto_resume_job_and_resumes_at_once_submit_once(sandbox: Any, project: Any) -> None:
    """An auto-resume job and two resumes by hand at once: one submits, the others say so."""
    # Else a job that loses its supervisor may be requeued, up to its budget, before.
    words = (*COMMAND, command(project), "recovery.requeue=false")
    done = project.hpckit("launch", "--wait", *words)
    assert done.returncode == 1, done.stderr
    (project.folder / "fixed").touch()
    folder = project.launch_folder()
    commands = [[sys.executable, "-m", "hpckit", "auto-resume", str(folder), "--job", "0"]]
    commands += [[sys.executable, "-m", "hpckit", "resume", "--json", str(folder)]] * 2
    rushing = [
        subprocess.Popen(one, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for one in commands
    ]
    said = [process.communicate(timeout=240) for process in rushing]
    codes = [process.returncode for process in rushing]
    assert codes[0] == 0, said
    assert set(codes) <= {0, 2}, said
    sandbox.wait_until(lambda: not queue(sandbox, project), "nothing is queued", patience_s=200)
    (run,) = project.look()["runs"]
    assert (run["state"], run["attempt"]) == ("completed", 2)
    assert len([path for path in folder.glob("job-*.sbatch") if "supervise" in path.read_text()]) == 2


def test_cancel_takes_the_auto_resume_job_along(sandbox: Any, project: Any) -> None:
    """After `cancel LAUNCH` nothing of it is in the queue."""
    project.json("launch", "--auto-resume", *COMMAND, "command=sleep 300")
    assert len(queue(sandbox, project)) == 2
    project.json("cancel")
    sandbox.wait_until(lambda: not queue(sandbox, project), "nothing is queued")
