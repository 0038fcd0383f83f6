"""More runs than a real Slurm takes at a time: all of them run, once, in order, bounded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.conftest import Sandbox
from integration.project import Project
from tiers import thorough

pytestmark = pytest.mark.slurm

QOS = "normal"
NOTE = (
    'command=[sh,-c,"date +%s.%N >> $HPCKIT_PROJECT/ran/$HPCKIT_RUN_INDEX; sleep 1;'
    ' date +%s.%N >> $HPCKIT_PROJECT/ran/$HPCKIT_RUN_INDEX"]'
)
WORDS = ("experiment=command", "cluster=sandbox", "code.snapshot=false", NOTE)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a fresh project, in which runs note when they begin and end."""
    fresh = Project(tmp_path / "project")
    fresh.create()
    (fresh.folder / "ran").mkdir()
    return fresh


@pytest.fixture
def _narrow(sandbox: Sandbox) -> Iterator[None]:
    """Let a user have thirteen jobs queued, by the QOS."""
    change = ("sacctmgr", "-i", "modify", "qos", QOS, "set")
    sandbox.slurm(*change, "MaxSubmitJobsPerUser=13")
    yield
    sandbox.slurm(*change, "MaxSubmitJobsPerUser=-1")


def spans(project: Project) -> dict[int, tuple[float, float]]:
    """Return when each run began and ended, by its own word; fails where one ran twice."""
    found = {}
    for file in (project.folder / "ran").iterdir():
        times = [float(line) for line in file.read_text().split()]
        assert len(times) == 2, f"run {file.name} ran {len(times) / 2:g} times"
        found[int(file.name)] = (times[0], times[1])
    return found


def most_at_a_time(found: dict[int, tuple[float, float]]) -> int:
    """Return how many runs overlapped at most."""
    begins, ends = zip(*found.values(), strict=True)
    edges = sorted([*((at, 1) for at in begins), *((at, -1) for at in ends)])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


@thorough
@pytest.mark.usefixtures("_narrow")
def test_runs_beyond_the_limit_are_fed_by_the_chain_itself(sandbox: Sandbox, project: Project) -> None:
    """Nobody stays logged in: a tiny job hands in the next array when one has ended."""
    words = ("launch", "-m", *WORDS, "sweep.max_concurrent=3", "+params.x=range(0,16)")
    launched = project.json(*words)
    assert launched["backlog_job"] is not None
    folder = project.launch_folder()
    jobs = json.loads((folder / "launch.json").read_text())["jobs"]
    assert [len(job["runs"]) for job in jobs] == [5, 5, 5, 1]
    assert len(launched["jobs"]) == 2

    def done() -> bool:
        return [run["state"] for run in project.look()["runs"]] == ["completed"] * 16

    sandbox.wait_until(done, "all runs have completed", patience_s=240)
    found = spans(project)
    assert sorted(found) == list(range(16))
    assert most_at_a_time(found) <= 3
    begins = [found[run][0] for run in sorted(found)]
    assert max(begins[:5]) < min(begins[5:10])
    assert max(begins[5:10]) < min(begins[10:15])


@thorough
@pytest.mark.usefixtures("_narrow")
def test_launcher_that_is_killed_loses_no_run_and_starts_none_twice(project: Project) -> None:
    """What it had not handed in, `watch` does; what it had, is found again."""
    words = (sys.executable, "-m", "hpckit", "launch", "-m", *WORDS, "+params.x=range(0,14)")
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(project.outputs)}
    process = subprocess.Popen(words, cwd=project.folder, env=environ)
    events = ""
    while "submitted" not in events:
        time.sleep(0.01)
        found = list(project.outputs.glob("*/events/*.jsonl"))
        events = "".join(path.read_text() for path in found)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    watched = project.hpckit("watch", timeout=240)
    assert watched.returncode == 0, watched.stderr
    assert sorted(spans(project)) == list(range(14))
