"""Promises of `hpckit watch`, with real runs here and on a fake Slurm."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

from hpckit.model.events import SubmitIntended
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import load_launch, read_run_records

pytestmark = pytest.mark.slow

QUICK = ("experiment=command", "code.snapshot=false")


def attempts(folder: Path) -> list[int]:
    """Return how many attempts each run has had."""
    return [len(list(run.glob("attempts/*"))) for run in sorted(folder.glob("runs/*"))]


@pytest.mark.parametrize("cluster", [pytest.param("local", marks=thorough), "slurm"])
def test_watch_resumes_until_all_is_done(slurm_shell: Any, lose_supervisor: Any, cluster: str) -> None:
    """Runs whose supervisor is killed once or twice are brought to their end, exit code 0."""
    words = (lose_supervisor(), "+params.i=1,3", *QUICK, f"cluster={cluster}")
    slurm_shell("launch", "-m", *words)
    said = slurm_shell("watch")
    assert said.code == 0, said.out + said.err
    assert attempts(slurm_shell.outputs[0]) == [1, 3]
    assert "is done" in said.out


@thorough
def test_watch_gives_up_when_the_budget_is_spent(shell: Any, lose_supervisor: Any) -> None:
    """The same end three times without getting further: it is not resumed, and why is said."""
    shell("launch", "-m", *QUICK, "cluster=local", lose_supervisor(), "+params.i=1,9")
    said = shell("watch", "--json")
    assert said.code == 1
    runs = json.loads(said.out)["runs"]
    assert [run["resumes"] for run in runs] == [0, 2]
    assert runs[1]["reason"] == "the same failure 3 times without getting further"
    again = shell("watch")
    assert "left    " in again.out
    assert "the same failure 3 times" in again.out
    assert attempts(shell.outputs[0]) == [1, 3]


@thorough
def test_watch_counts_anew_after_a_resume_by_hand(shell: Any, lose_supervisor: Any) -> None:
    """Somebody fixed something: what failed before that counts no more."""
    shell("launch", *QUICK, "cluster=local", lose_supervisor(), "+params.i=9")
    shell("watch")
    assert attempts(shell.outputs[0]) == [3]
    shell("resume", "--wait")
    shell("watch")
    assert attempts(shell.outputs[0]) == [6]


def test_watch_leaves_alone_what_the_code_did(shell: Any) -> None:
    """What has no restarts in the run's recovery is not resumed either; by hand it is."""
    shell("launch", "--wait", *QUICK, "cluster=local", "command=false")
    said = shell("watch", "--json")
    assert said.code == 1
    (run,) = json.loads(said.out)["runs"]
    assert (run["resumes"], run["reason"]) == (0, "no restart after exit_code, by its recovery")
    shell("resume", "--wait")
    assert attempts(shell.outputs[0]) == [2]


def test_watch_stops_on_jobs_that_never_begin(slurm_shell: Any) -> None:
    """A script that ends before the supervisor is started is given three jobs, not endless ones."""
    words = (*QUICK, "cluster=slurm", "cluster.setup=[exit 5]", "command=true")
    slurm_shell("launch", *words)
    said = slurm_shell("watch", "--json")
    assert said.code == 1, said.err
    (run,) = json.loads(said.out)["runs"]
    assert run["resumes"] == 2
    assert attempts(slurm_shell.outputs[0]) == [], "no run has so much as a folder"


@thorough
def test_watch_hands_in_what_a_killed_launcher_only_meant_to(slurm_shell: Any) -> None:
    """Its intent is on record, and Slurm never had the job: the runs are not lost, nor doubled."""
    words = ("experiment=command", "code.snapshot=false", "command=true", "cluster=slurm")
    slurm_shell("render", "-m", *words, "resources=cpu,cpu_pair")
    launch = load_launch(slurm_shell.outputs[0])
    long_ago = datetime(2025, 1, 1, tzinfo=UTC)
    for job in launch.jobs:
        intent = SubmitIntended(at=long_ago, job_index=job.index, job_name=job.name)
        record_launch_event(launch.paths, intent)
    said = slurm_shell("watch")
    assert said.code == 0, said.out + said.err
    assert attempts(launch.folder) == [1, 1]
    assert [run.state for run in read_run_records(launch)] == ["completed"] * 2
