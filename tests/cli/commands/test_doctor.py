"""Promises of `hpckit doctor`: no job is lost where a submission broke off."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hpckit.model.events import JobAdded, SubmitIntended
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import load_launch, read_run_records
from hpckit.views.launch_view import list_unconfirmed_jobs

TASK = ("experiment=command", "command=sleep 60", "cluster=slurm", "code.snapshot=false")


@pytest.fixture
def orphan(slurm_shell: Any, fake_slurm: Any) -> Any:
    """Make a launch whose job Slurm has, while the launcher ended before it could note it."""
    rendered = json.loads(slurm_shell("render", "--json", *TASK).out)
    launch = load_launch(slurm_shell.outputs[0])
    record_launch_event(
        launch.paths, SubmitIntended(at=launch.created_at, job_index=0, job_name=launch.jobs[0].name)
    )
    fake_slurm.slurm("sbatch", "--hold", rendered["scripts"][0])
    return launch


def orphans(shell: Any, *words: str) -> list[dict[str, Any]]:
    """Return what `doctor --json` found."""
    said = shell("doctor", "--json", *words)
    assert said.code == 0, said.err
    found: list[dict[str, Any]] = json.loads(said.out)["unconfirmed"]
    return found


def names(fake_slurm: Any) -> list[str]:
    """Return the names of live jobs."""
    return str(fake_slurm.slurm("squeue", "--me", "--Format=Name:0|")).split()


def test_doctor_is_content_with_a_whole_launch(slurm_shell: Any) -> None:
    """Where every submission has an outcome there is nothing to do."""
    assert slurm_shell("launch", *TASK).code == 0
    assert orphans(slurm_shell) == []
    assert "accounted for" in slurm_shell("doctor").out


def test_doctor_shows_an_unconfirmed_job_and_changes_nothing(slurm_shell: Any, orphan: Any) -> None:
    """Without a flag it says what Slurm has under the name, and what can be done."""
    (found,) = orphans(slurm_shell)
    assert (found["launch"], found["outcome"]) == (orphan.id, "untouched")
    assert len(found["jobs"]) == 1
    assert "--adopt" in slurm_shell("doctor").out
    assert len(orphans(slurm_shell)) == 1


def test_doctor_adopts_an_unconfirmed_job(slurm_shell: Any, orphan: Any) -> None:
    """Adopted, the job belongs to its run, and is an orphan no more."""
    (found,) = orphans(slurm_shell, orphan.id, "--adopt")
    assert found["outcome"] == "adopted"
    assert [run.job for run in read_run_records(orphan)] == found["jobs"]
    assert orphans(slurm_shell) == []


def test_unconfirmed_knows_a_job_that_was_added_meanwhile(slurm_shell: Any) -> None:
    """An auto-resume job that is handed in between two looks is no riddle to the second."""
    assert slurm_shell("launch", *TASK).code == 0
    launch = load_launch(slurm_shell.outputs[0])
    auto_resume = replace(launch.jobs[0], index=1, name="later", runs=())
    at = launch.created_at
    record_launch_event(launch.paths, JobAdded(at=at, job=auto_resume, after=()))
    record_launch_event(launch.paths, SubmitIntended(at=at, job_index=1, job_name="later"))
    assert list_unconfirmed_jobs(launch) == (auto_resume,)
    assert "whether Slurm accepted later" in slurm_shell("status").err


def test_doctor_cancels_an_unconfirmed_job(slurm_shell: Any, fake_slurm: Any, orphan: Any) -> None:
    """Cancelled, the job is gone from Slurm and its run counts as cancelled."""
    (found,) = orphans(slurm_shell, "--cancel")
    assert found["outcome"] == "cancelled"
    assert orphan.id not in names(fake_slurm)
    assert read_run_records(orphan)[0].cancel_requested
    assert orphans(slurm_shell) == []


def test_doctor_closes_an_intent_slurm_never_heard_of(slurm_shell: Any) -> None:
    """Where Slurm has no such job, settling it records that nothing was submitted."""
    assert slurm_shell("render", *TASK).code == 0
    launch = load_launch(slurm_shell.outputs[0])
    earlier = launch.created_at - timedelta(minutes=5)
    intent = SubmitIntended(at=earlier, job_index=0, job_name=launch.jobs[0].name)
    record_launch_event(launch.paths, intent)
    assert orphans(slurm_shell)[0]["jobs"] == []
    assert orphans(slurm_shell, "--adopt")[0]["outcome"] == "closed"
    assert orphans(slurm_shell) == []


def test_doctor_leaves_alone_what_may_be_being_submitted(slurm_shell: Any) -> None:
    """Slurm has no such job yet: sbatch may be at it, whose answer would contradict the record."""
    assert slurm_shell("render", *TASK).code == 0
    launch = load_launch(slurm_shell.outputs[0])
    intent = SubmitIntended(at=launch.created_at, job_index=0, job_name=launch.jobs[0].name)
    record_launch_event(launch.paths, intent)
    assert orphans(slurm_shell, "--adopt")[0]["outcome"] == "untouched"
    assert "ask again in" in slurm_shell("doctor", "--cancel").err
    assert list_unconfirmed_jobs(launch) == launch.jobs


def test_doctor_with_slurm_away_is_3(slurm_shell: Any, fake_slurm: Any, orphan: Any) -> None:
    """While Slurm does not answer nothing is settled, and the exit code says why."""
    fake_slurm.fail("controller-away")
    fake_slurm.fail("database-away")
    assert slurm_shell("doctor", "--adopt", orphan.id).code == 3
    fake_slurm.mend("controller-away")
    assert len(orphans(slurm_shell)) == 1


def test_submission_whose_answer_was_lost_is_taken_back(slurm_shell: Any, fake_slurm: Any) -> None:
    """An sbatch that submitted and died is no refusal: its job is found by name and ended."""
    fake_slurm.fail("lose-answer")
    said = slurm_shell("launch", *TASK)
    assert said.code == 3
    (folder,) = slurm_shell.outputs
    assert folder.name not in names(fake_slurm)
    assert orphans(slurm_shell) == []
