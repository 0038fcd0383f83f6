"""Preemption where Slurm does not start a job again: the run sees to its next attempt itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from integration.conftest import Sandbox
from integration.test_faults_time import SLOWLY, STEPS, lost_nothing
from integration.training import Training

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]


@pytest.fixture
def cancels(sandbox: Sandbox) -> Iterator[None]:
    """Let preemption cancel the jobs of partition batch."""
    change = ("scontrol", "update", "PartitionName=batch")
    sandbox.slurm(*change, "PreemptMode=CANCEL")
    yield
    sandbox.slurm(*change, f"PreemptMode={sandbox.options['preempt_mode']}")
    sandbox.slurm(*change, f"GraceTime={sandbox.options['grace']}")


def asked(training: Training) -> list[str]:
    """Return the answers to requests for another attempt."""
    return [event["outcome"] for event in training.events("requeue_asked")]


@pytest.mark.release
@pytest.mark.main
@pytest.mark.usefixtures("cancels")
def test_run_that_a_preemption_cancels_loses_no_step(training: Training, calm: dict[int, float]) -> None:
    """PreemptMode=CANCEL: saved within the grace, requeued once by itself, the same losses."""
    training.launch(*SLOWLY)
    training.wait_for_step(5)
    job = training.job
    training.strike("preempt partition=urgent")
    training.completed(attempts=2)
    lost_nothing(training, calm, "preempted", STEPS)
    assert asked(training) == ["requeued"]
    assert training.job == job


@pytest.mark.usefixtures("cancels")
def test_run_that_is_cancelled_without_grace_asks_while_it_saves(
    training: Training, calm: dict[int, float]
) -> None:
    """GraceTime=0: KillWait is all there is, and the next attempt is asked for at its beginning."""
    training.sandbox.slurm("scontrol", "update", "PartitionName=batch", "GraceTime=0")
    training.launch(*SLOWLY)
    training.wait_for_step(5)
    training.strike("preempt partition=urgent")
    training.completed(attempts=2)
    lost_nothing(training, calm, "preempted", STEPS)
    assert asked(training) == ["requeued"]


@pytest.mark.release
@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL"])
@pytest.mark.usefixtures("cancels")
def test_job_that_must_not_be_requeued_has_one_successor(
    training: Training, calm: dict[int, float], mode: str
) -> None:
    """Requeue=0: Slurm kills it in either mode; another job continues the run."""
    training.sandbox.slurm("scontrol", "update", "PartitionName=batch", f"PreemptMode={mode}")
    training.launch(*SLOWLY)
    training.wait_for_step(5)
    job = training.job
    training.sandbox.slurm("scontrol", "update", f"JobId={job}", "Requeue=0")
    training.strike("preempt partition=urgent")
    run = training.over()
    assert (run["state"], run["attempt"]) == ("completed", 2)
    lost_nothing(training, calm, "preempted", STEPS)
    (message,) = [event["message"] for event in training.events("requeue_asked")]
    assert "presently disabled" in message
    assert message.endswith(f"job {training.job} continues the run")
    assert training.job != job


@pytest.mark.main
@pytest.mark.usefixtures("cancels")
def test_scancel_within_the_grace_is_final(training: Training) -> None:
    """What its user cancels is not started again, though a preemption had begun."""
    training.launch(*SLOWLY, "+params.hold=9", "runtime.notice_grace_s=60")
    training.wait_for_step(8)
    training.strike("preempt partition=urgent")
    training.wait(lambda: training.events("notice_heard"), "it has heard of the preemption")
    # Slurm tells times in seconds: an end within the first one could be its own.
    time.sleep(2)
    training.sandbox.slurm("scancel", training.job)
    training.wait(lambda: training.run["state"] == "cancelled", "it is cancelled")
    assert "requeued" not in asked(training)
    assert training.run["attempt"] == 1
    assert training.sandbox.state_of_job(training.job) != "PENDING"
