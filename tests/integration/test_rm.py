"""`hpckit rm` on a real Slurm: nothing goes while Slurm has a job of the launch."""

from __future__ import annotations

from typing import Any

import pytest
from tiers import thorough

pytestmark = pytest.mark.slurm

COMMAND = ("experiment=command", "cluster=sandbox", "code.snapshot=false")


def refused(project: Any, launch: str) -> str:
    """Try to remove a launch, which must be refused as a whole; return why."""
    before = {*(project.outputs / launch).glob("*")}
    done = project.hpckit("rm", launch, "--yes")
    assert done.returncode == 2, done.stdout + done.stderr
    # A run that begins meanwhile may add to them.
    assert before <= {*(project.outputs / launch).glob("*")}
    return str(done.stderr)


@pytest.mark.main
def test_rm_waits_for_runs_and_for_the_auto_resume_job(sandbox: Any, project: Any) -> None:
    """While a run, or what would resume it, is in the queue the launch stays; then it goes."""
    launched = project.json("launch", *COMMAND, "command=[sleep,300]", "--auto-resume")
    launch, (job,) = launched["launch"], launched["jobs"]
    sandbox.wait_until(lambda: sandbox.state_of_job(job) == "RUNNING", "the job runs")
    assert f"hpckit cancel {launch}" in refused(project, launch)
    sandbox.slurm("scontrol", "hold", launched["auto_resume_job"])
    sandbox.slurm("scancel", job)
    sandbox.wait_until(lambda: job not in sandbox.queued(), "the job has ended")
    project.ended(launch)
    assert launched["auto_resume_job"] in refused(project, launch)
    project.hpckit("cancel", launch)
    sandbox.wait_until(
        lambda: launched["auto_resume_job"] not in sandbox.queued(), "the auto-resume job is gone"
    )
    done = project.hpckit("rm", launch, "--yes")
    assert (done.returncode, [*project.outputs.iterdir()]) == (0, []), done.stderr


@thorough
def test_rm_makes_a_completed_run_be_computed_again(sandbox: Any, project: Any) -> None:
    """What is removed stands for no later launch."""
    words = ("launch", *COMMAND, "command=[true]")
    launch = project.json(*words)["launch"]
    project.ended(launch)
    assert project.json(*words)["skipped"]
    sandbox.wait_until(
        lambda: project.hpckit("rm", launch, "--yes").returncode == 0, "the launch can be removed"
    )
    again = project.json(*words)
    assert (again["skipped"], len(again["runs"])) == ([], 1)
    project.ended(again["launch"])
