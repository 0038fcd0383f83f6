"""Promises of jobs that ask for more after memory ran out, on a fake Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from hpckit.record.launches import load_launch, read_launch_history

pytestmark = pytest.mark.slow

EAT = """
import os, sys
from pathlib import Path
tries = Path(os.environ["HPCKIT_PROJECT"], "tries" + os.environ["HPCKIT_RUN_INDEX"])
before = len(tries.read_text()) if tries.exists() else 0
tries.write_text("x" * (before + 1))
if before < int(sys.argv[1]):
    raise MemoryError("too little for it")
"""
WORDS = (
    *("experiment=command", "code.snapshot=false", "cluster=slurm", "resources.mem_gb=1"),
    *("recovery.grow_on_oom=2", "recovery.grow_max=5", "observe=off"),
)
EATS = "command=[python,eat.py,'${params.lacks}']"


@pytest.fixture
def project(slurm_shell: Any) -> Any:
    """Return a shell in a project whose runs lack memory as often as `params.lacks` says."""
    Path(slurm_shell.cwd, "eat.py").write_text(EAT)
    return slurm_shell


def runs(shell: Any) -> list[dict[str, Any]]:
    """Return the runs by `status`, once all have ended."""

    def ended() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(shell("status", "--json").out)["runs"]
        over = all(run["state"] in {"completed", "failed"} for run in found)
        return found if over else []

    until(ended)
    return ended()


def asked(folder: Path) -> list[str]:
    """Return the memory that each job of a launch asks for, in the order of the jobs."""
    found = sorted(folder.glob("job-*.sbatch"), key=lambda path: int(path.stem.split("-")[1]))
    lines = (line for path in found for line in path.read_text().splitlines())
    return [line.partition("--mem=")[2] for line in lines if line.startswith("#SBATCH --mem=")]


def words(run: dict[str, Any]) -> list[str]:
    """Return how hpckit made a run's jobs ask for more."""
    assert all(change["cause"] == "host_oom" for change in run["grown"])
    return [word for change in run["grown"] for word in change["words"]]


def test_element_that_lacks_memory_continues_in_a_job_with_more(project: Any) -> None:
    """The others of its array ask for no more; its identity stays, and what it got is shown."""
    assert project("launch", "-m", *WORDS, EATS, "+params.lacks=0,2").code == 0
    (folder,) = project.outputs
    before = load_launch(folder).runs
    fine, lacking = runs(project)
    assert (fine["state"], fine["attempt"], fine["grown"]) == ("completed", 1, [])
    assert (lacking["state"], lacking["attempt"]) == ("completed", 3)
    assert words(lacking) == ["resources.mem_gb=2", "resources.mem_gb=4"]
    assert lacking["overrides"]["resources.mem_gb"] == 4
    assert asked(folder) == ["1G", "2G", "4G"]
    assert load_launch(folder).runs == before
    assert "resources.mem_gb=4 since" in project("status", f"{folder.name}.1").out
    assert "(more after host_oom)" in project("show", f"{folder.name}.1").out
    changes = json.loads(project("show", f"{folder.name}.1", "--json").out)["settings_changes"]
    assert [change["cause"] for change in changes] == ["host_oom"] * 2


def test_resume_lets_each_run_grow_by_itself_and_no_further_than_its_bound(project: Any) -> None:
    """Without restarts by itself a run grows with each resume; words of the user come first."""
    lacks = "+params.lacks=0,9"
    assert project("launch", "-m", *WORDS, EATS, lacks, "recovery.restarts.host_oom=0").code == 0
    (folder,) = project.outputs
    assert [run["state"] for run in runs(project)] == ["completed", "failed"]
    for memory in ("2G", "4G", "5G"):
        assert project("resume").code == 0
        runs(project)
        assert asked(folder)[-1] == memory
    at_its_bound = project("resume")
    assert "resources.mem_gb=5 is all that recovery.grow_max=5 allows" in at_its_bound.err
    runs(project)
    assert asked(folder)[-1] == "5G"
    assert project("resume", "resources.mem_gb=6").code == 0
    assert len(words(runs(project)[1])) == 3
    assert project("resume").code == 0
    runs(project)
    assert asked(folder) == ["1G", "2G", "4G", "5G", "5G", "6G", "12G"]
    assert len(read_launch_history(load_launch(folder)).settings_changes[1]) == 5


def test_runs_that_share_jobs_grow_when_they_are_resumed(project: Any) -> None:
    """Their job keeps its memory; a job of resumed runs has more for each slot."""
    shared = ("sweep.runs_per_job=2", "recovery.restarts.host_oom=0")
    assert project("launch", "-m", *WORDS, EATS, "+params.lacks=1,1", *shared).code == 0
    (folder,) = project.outputs
    assert [run["state"] for run in runs(project)] == ["failed", "failed"]
    (first,) = asked(folder)
    assert project("resume").code == 0
    assert [(run["state"], words(run)) for run in runs(project)] == [
        ("completed", ["resources.mem_gb=2"]),
        ("completed", ["resources.mem_gb=2"]),
    ]
    assert asked(folder) == [first, f"{2 * int(first[:-1])}G"]


def test_stage_that_others_wait_for_keeps_its_job(project: Any) -> None:
    """Jobs that wait for this one to succeed would never start if another job continued its run."""
    Path(project.cwd, "conf", "experiment").mkdir(parents=True, exist_ok=True)
    stages = "stages: {first: {overrides: [params.lacks=1]}, second: {after: afterok}}\n"
    command = "command: [python, eat.py, '${params.lacks}']\n"
    Path(project.cwd, "conf", "experiment", "two.yaml").write_text(
        f"# @package _global_\nparams: {{lacks: 0}}\n{command}{stages}"
    )
    assert project("launch", "experiment=two", *WORDS[1:]).code == 0
    assert [(run["state"], run["attempt"], run["grown"]) for run in runs(project)] == [
        ("completed", 1, [])
    ] * 2
    assert len(asked(project.outputs[0])) == 2


def test_successor_that_waits_already_makes_way_for_one_with_more(project: Any, fake_slurm: Any) -> None:
    """It had been queued ahead of time, with as little memory; each grown job has a successor like itself."""
    successor = "recovery.queue_successor=true"
    assert project("launch", *WORDS, "command=[python,eat.py,2]", successor).code == 0
    (folder,) = project.outputs
    (run,) = runs(project)
    assert (run["state"], run["attempt"]) == ("completed", 3)
    assert words(run) == ["resources.mem_gb=2", "resources.mem_gb=4"]
    until(lambda: not fake_slurm.slurm("squeue", "--noheader", "--Format=Name:0|").strip())
    assert {"1G", "2G", "4G"} == {*asked(folder)}
