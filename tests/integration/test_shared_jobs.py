"""Runs that share jobs on a real Slurm: a crash, a hang and a preemption disturb nobody else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Sandbox
from integration.project import Project

pytestmark = [pytest.mark.slurm, pytest.mark.main, pytest.mark.timeout(600)]

RUN = """\
here=$HPCKIT_PROJECT/ran
echo $HPCKIT_RUN_INDEX >> $here/began
case $1 in
    crash) exit 7;;
    hang) python hang.py $here/hung || exit 1;;
    wait) while [ ! -e $here/go ]; do sleep 0.2; done;;
    *) sleep $1;;
esac
echo $HPCKIT_RUN_INDEX >> $here/ended
"""

HANG = """\
import pathlib, sys, time
import hpckit

run = hpckit.attach()
mark = pathlib.Path(sys.argv[1])
for step in run.steps(30):
    time.sleep(0.05)
    if step == 25 and not mark.exists():
        mark.touch()
        time.sleep(3600)
"""

SHORT = ("0.4", "1.6", "0.2", "2.5", "0.9", "0.1")
DOES = ("crash", "hang", *SHORT, *["wait"] * 8)
WAITING = range(2 + len(SHORT), len(DOES))
WORDS = (
    *("experiment=command", "cluster=sandbox", "code.snapshot=false"),
    *("sweep.runs_per_job=8", "sweep.max_concurrent=16", "resources.cpus_per_task=2"),
    *("resources.mem_gb=0.1", "runtime.hang_min_s=6", "runtime.hang_first_s=60"),
    "command=[sh,run.sh,'${params.does}']",
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a fresh project, in which runs note when they begin and when they have ended."""
    fresh = Project(tmp_path / "project")
    fresh.create()
    fresh.write("run.sh", RUN)
    fresh.write("hang.py", HANG)
    (fresh.folder / "ran").mkdir()
    return fresh


def noted(project: Project, name: str) -> Counter[int]:
    """Return how often each run has left a line."""
    path = project.folder / "ran" / name
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def runs(project: Project) -> list[dict[str, Any]]:
    """Return the runs by `status`."""
    found: list[dict[str, Any]] = project.look()["runs"]
    return found


def first_attempt(folder: Path, run: int, event: str) -> list[dict[str, Any]]:
    """Return what was recorded of this kind in a run's first attempt."""
    path = folder / "runs" / f"{run:05d}" / "attempts" / "001" / "events.jsonl"
    told = [json.loads(line) for line in path.read_text().splitlines()]
    return [one for one in told if one["event"] == event]


def test_runs_that_share_jobs_are_disturbed_by_no_other(sandbox: Sandbox, project: Project) -> None:
    """One crashes, one hangs, one of the two jobs is preempted: each run ends as it should."""
    project.json("launch", "-m", *WORDS, f"+params.does={','.join(DOES)}")
    folder = project.launch_folder()
    (job,) = json.loads((folder / "launch.json").read_text())["jobs"]
    assert (job["shared_job"]["jobs"], job["shared_job"]["slots"]) == (2, 8)
    short, all_begun = set(range(2, WAITING.start)), set(range(len(DOES)))
    sandbox.wait_until(
        lambda: noted(project, "began").keys() == all_begun and noted(project, "ended").keys() >= short,
        "the short runs have ended, and all others run",
        patience_s=240,
    )
    sandbox.wait_until(
        lambda: {run["state"] for run in runs(project)[WAITING.start :]} == {"running"},
        "the record knows of them",
    )
    # The hung run has a slot of the other job: eight runs wait, and beside it is room for seven.
    now = runs(project)
    struck = next(run for run in now[WAITING.start :] if run["job"] != now[1]["job"])
    mine = [run for run in now[WAITING.start :] if run["job"] == struck["job"]]
    (node,) = struck["nodes"]
    urgent = ("--partition=urgent", f"--nodelist={node}", "--exclusive", "--no-requeue")
    sandbox.slurm("sbatch", *urgent, "--output=/dev/null", "--chdir=/", "--wrap=sleep 1")
    again = {run["index"] for run in mine}
    sandbox.wait_until(
        lambda: all(noted(project, "began")[run] == 2 for run in again),
        "what the preempted job had runs once more",
        patience_s=240,
    )
    (project.folder / "ran" / "go").touch()
    sandbox.wait_until(
        lambda: {run["state"] for run in runs(project)} == {"failed", "completed"},
        "all runs are over",
        patience_s=240,
    )
    assert [run["state"] for run in runs(project)] == ["failed", *["completed"] * (len(DOES) - 1)]
    assert noted(project, "ended") == Counter(range(1, len(DOES)))
    assert {run["index"] for run in runs(project) if run["attempt"] == 2} == again
    ends = [end for run in again for end in first_attempt(folder, run, "attempt_ended")]
    told = {(end["state"], end["failure"]["cause"]) for end in ends}
    assert told == {("interrupted", "preempted")}
    rounds = [one["failure"] for one in first_attempt(folder, 1, "round_ended")]
    causes = [failure and failure["cause"] for failure in rounds]
    assert (set(causes[:-1]), causes[-1]) == ({"hang"}, None)
