"""Resuming on a real Slurm: what failed or was lost runs again, once, and nothing else does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from tiers import thorough

pytestmark = pytest.mark.slurm

SLOW = """
import os, time, torch
from pathlib import Path

def main(config, run):
    model = torch.nn.Linear(1, 1)
    run.state(model=model)
    project = Path(os.environ["HPCKIT_PROJECT"])
    for step in run.steps(300):
        with (project / "steps").open("a") as file:
            file.write(f"{step}\\n")
        time.sleep(0 if (project / "fast").exists() else 1)
"""
UNLESS_FIXED = "command=[sh,-c,'test -e $HPCKIT_PROJECT/fixed || test ${params.i} = 0']"
COMMAND = ("experiment=command", "cluster=sandbox", "code.snapshot=false")


def fix(project: Any) -> None:
    """Let the next attempts succeed; not by a change of what git tracks."""
    (project.folder / "fixed").touch()


def fail_two_of_three(project: Any) -> None:
    """Launch a sweep of three of which only the first completes."""
    done = project.hpckit("launch", "--wait", "-m", *COMMAND, UNLESS_FIXED, "+params.i=0,1,2")
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.release
@pytest.mark.main
def test_resume_submits_a_compact_array_of_what_failed(sandbox: Any, project: Any) -> None:
    """Two failed of three become elements 0 and 1 of one new job; all complete in the end."""
    fail_two_of_three(project)
    fix(project)
    resumed = project.json("resume", "--wait")
    (job,) = resumed["jobs"]
    assert [(run["index"], run["job"]) for run in resumed["runs"]] == [(1, f"{job}_0"), (2, f"{job}_1")]
    runs = project.look()["runs"]
    assert [(run["state"], run["attempt"]) for run in runs] == [
        ("completed", 1),
        ("completed", 2),
        ("completed", 2),
    ]
    script = sandbox.slurm("scontrol", "show", "job", job)
    assert f"JobName={resumed['launch']}-1" in script
    assert project.json("resume")["runs"] == []


@pytest.mark.main
def test_resume_gives_more_time_from_the_checkpoint_on(sandbox: Any, project: Any) -> None:
    """Out of time, resumed with other facts for Slurm: no step is done twice."""
    project.write("slow.py", SLOW)
    launched = project.json(
        *("launch", "experiment=function", "entry_point=slow:main", "cluster=sandbox"),
        *("recovery=never", "resources.timeout_min=1", "runtime.save_before_timeout_s=25"),
    )
    (run,) = project.ended(patience_s=150)["runs"]
    assert (run["state"], run["failure"]["cause"]) == ("interrupted", "time_limit")
    more = "resources.timeout_min=MINUTES (from step "
    assert more in project.hpckit("status").stdout
    (project.folder / "fast").touch()
    resumed = project.json("resume", "resources.timeout_min=30", "resources.mem_gb=0.5", "--wait")
    (job,) = resumed["jobs"]
    asked = sandbox.slurm("scontrol", "show", "job", job)
    assert "TimeLimit=00:30:00" in asked
    assert "MinMemoryNode=512M" in asked
    (run,) = project.look()["runs"]
    assert (run["state"], run["attempt"]) == ("completed", 2)
    steps = (project.folder / "steps").read_text().split()
    assert steps == [str(step) for step in range(300)]
    assert "timeout_min=30, " in project.hpckit("show", launched["launch"]).stdout


@thorough
def test_resume_by_two_at_once_submits_once(sandbox: Any, project: Any) -> None:
    """Of resumes at the same time one wins; the others are refused or find nothing left to do."""
    fail_two_of_three(project)
    fix(project)
    words = [sys.executable, "-m", "hpckit", "resume", "--json", "--output-dir"]
    rushing = [
        subprocess.Popen(
            [*words, str(project.outputs)],
            cwd=project.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=200) for process in rushing]
    codes = [process.returncode for process in rushing]
    assert 0 in codes
    assert set(codes) <= {0, 2}, said
    assert all("is resuming" in err for (_, err), code in zip(said, codes, strict=True) if code)
    jobs = [job for out, _ in said if out for job in json.loads(out)["jobs"]]
    assert len(jobs) == 1
    assert [run["attempt"] for run in project.ended()["runs"]] == [1, 2, 2]
    assert sandbox.slurm("squeue", "-h", "-n", f"{project.launch_folder().name}-2").strip() == ""


@thorough
@pytest.mark.main
def test_resume_goes_on_after_a_batch_host_lost_its_supervisor(sandbox: Any, project: Any) -> None:
    """A run whose supervisor was killed without a final event is resumed as its next attempt."""
    script = "until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.2; done"
    launched = project.json("launch", *COMMAND, f"command=[sh,-c,'{script}']", "recovery=never")
    (job,) = launched["jobs"]

    def has_begun() -> bool:
        return project.look()["runs"][0]["round"] is not None

    sandbox.wait_until(has_begun, "the run has begun")
    (supervisor,) = [
        json.loads(line)["pid"]
        for path in project.launch_folder().glob("runs/00000/attempts/001/events.jsonl")
        for line in path.read_text().splitlines()
        if '"attempt_started"' in line
    ]
    os.kill(supervisor, signal.SIGKILL)
    project.ended()
    fix(project)
    done = project.hpckit("resume", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = project.look()["runs"]
    assert (run["state"], run["attempt"]) == ("completed", 2)
    assert run["job"] != job


LOSE = """\
mark=$HPCKIT_PROJECT/begun-$HPCKIT_RUN_INDEX
[ $HPCKIT_RUN_INDEX = 0 ] || [ -e $mark ] && exit 0
touch $mark
pid='s/.*"attempt_started".*"pid":\\([0-9]*\\).*/\\1/p'
kill -9 $(sed -n "$pid" $HPCKIT_ATTEMPT_DIR/events.jsonl)
sleep 60
"""


@thorough
def test_watch_brings_a_sweep_to_its_end(sandbox: Any, project: Any) -> None:
    """A run that loses its supervisor is resumed when its job has ended, without anybody asking."""
    assert sandbox.nodes
    project.write("lose.sh", LOSE)
    words = ("launch", "-m", *COMMAND, f"command=[sh,{project.folder / 'lose.sh'}]")
    assert project.hpckit(*words, "recovery.requeue=false", "+params.i=1,2").returncode == 0
    done = project.hpckit("watch", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [run["resumes"] for run in json.loads(done.stdout)["runs"]] == [0, 1]
