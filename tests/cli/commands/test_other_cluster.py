"""A launch whose jobs are on another cluster, of which this machine's Slurm knows nothing.

Two clusters may share a file system and the paths of their programs, and a Slurm that was set up
anew begins its numbers again.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from hpckit.errors import SchedulerAwayError
from hpckit.model import events
from hpckit.model.launch import ClusterKind
from hpckit.record.launches import load_launch, read_launch_events


def held(slurm: Any, *words: str) -> str:
    """Return the number of a job that waits."""
    job: str = slurm.slurm("sbatch", "--parsable", "--hold", "--wrap=true", *words).strip()
    return job


def submitted(desk: Any, launch: Any, job: str, cluster: str = "") -> None:
    """Record that a cluster accepted the launch's job."""
    at = launch.created_at + timedelta(seconds=1)
    desk.tell(launch, events.Submitted(at=at, job_index=0, job=job, cluster=cluster))


def test_launch_records_its_cluster(shell: Any, fake_slurm: Any) -> None:
    """By the name that Slurm gives itself."""
    shell.environ = {**shell.environ, **fake_slurm.environ}
    words = ("cluster=slurm", "experiment=command", "command=true", "code.snapshot=false")
    assert shell("launch", *words).code == 0
    (folder,) = shell.outputs
    told = read_launch_events(load_launch(folder))
    assert [one.cluster for one in told if isinstance(one, events.Submitted)] == ["fake"]


@pytest.mark.parametrize("number", ["known here", "not given yet"])
@pytest.mark.parametrize("state", ["pending", "running"])
def test_run_of_another_cluster_is_neither_resumed_nor_removed(
    on_slurm: Any, fake_slurm: Any, writer: Any, state: str, number: str
) -> None:
    """It may run there: its own record counts, with a warning."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    job = held(fake_slurm) if number == "known here" else "7"
    submitted(on_slurm, launch, job, "far")
    if state == "running":
        writer(launch=launch).start(job=job)
    said = on_slurm.say("status", "--json", "--fresh")
    if number != "known here":
        assert "its jobs are on cluster far, and this machine's Slurm is fake" in said.err
        assert json.loads(said.out)["scheduler"] == "unreachable"
        assert [run["state"] for run in json.loads(said.out)["runs"]] == [state]
    with pytest.raises(SchedulerAwayError, match="cluster far"):
        on_slurm.say("resume")
    removal = json.loads(on_slurm.say("rm", launch.id, "--yes", "--json").out)["launches"][0]
    assert removal["refused"]
    assert launch.folder.exists()


def test_number_that_this_slurm_has_not_given_is_no_lost_job(on_slurm: Any, writer: Any) -> None:
    """It was set up anew, or is another one of the same name: nothing is started again."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    submitted(on_slurm, launch, "7", "fake")
    writer(launch=launch).start(job="7")
    assert "has not reached job number 7" in on_slurm.say("status").err
    with pytest.raises(SchedulerAwayError, match="number 7"):
        on_slurm.say("resume")


def test_number_that_was_just_given_is_not_taken_for_a_strange_one(
    on_slurm: Any, fake_slurm: Any, writer: Any
) -> None:
    """Settings that Slurm told before the submission know nothing of its number."""
    for mode in ("forget", "database-away"):  # what was cancelled is nowhere
        fake_slurm.fail(mode)
    on_slurm.environ = {**on_slurm.environ, "HPCKIT_QUEUE_AGE_S": "600"}
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    job = str(int(held(fake_slurm)) + 1)
    submitted(on_slurm, launch, job)
    writer(launch=launch).start(job=job)
    assert f"has not reached job number {job}" in on_slurm.say("status").err
    assert held(fake_slurm) == job
    fake_slurm.slurm("scancel", job)
    assert "has not reached" not in on_slurm.say("status").err


def test_cancel_leaves_a_job_that_only_has_the_number(on_slurm: Any, fake_slurm: Any) -> None:
    """Another job of the user's got the number on this Slurm."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    mine = held(fake_slurm, "--job-name=mine")
    submitted(on_slurm, launch, mine)
    with pytest.raises(SchedulerAwayError, match="is 'mine', and not the one"):
        on_slurm.say("cancel")
    assert mine in fake_slurm.slurm("squeue", "--noheader", "--Format=JobArrayID:0|")


def test_cancel_leaves_jobs_of_the_number_on_another_cluster(on_slurm: Any, fake_slurm: Any) -> None:
    """By the names of the clusters, also if the job's name would do."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    job = held(fake_slurm, f"--job-name={launch.jobs[0].name}")
    submitted(on_slurm, launch, job, "far")
    with pytest.raises(SchedulerAwayError, match="cannot be cancelled from here"):
        on_slurm.say("cancel")


def test_cancel_knows_a_renamed_job_by_its_script(on_slurm: Any, fake_slurm: Any) -> None:
    """`scontrol update JobName=` is the user's right."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    script = launch.folder / "job-0.sbatch"
    script.write_text("#!/bin/sh\ntrue\n")
    words = ("sbatch", "--parsable", "--hold", "--job-name=renamed", str(script))
    job = fake_slurm.slurm(*words).strip()
    submitted(on_slurm, launch, job, "fake")
    on_slurm.say("cancel")
    assert job not in fake_slurm.slurm("squeue", "--noheader", "--Format=JobArrayID:0|")
