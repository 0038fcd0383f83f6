"""Notices on a real Slurm: preempted, requeued or out of time, a run loses no step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from integration.conftest import Sandbox
from integration.training import LONGEST, Training, first

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]

STEPS = 80
"""So many that a busy machine notices what is done to the run before its last step."""
TOO_LONG = ("+params.pause_s=0.15", "+params.slow_attempts=1", f"+params.steps={LONGEST}")
"""More steps than a job of one minute has time for; the next attempt does the rest at once."""
SLOWLY = ("+params.pause_s=0.2", f"+params.steps={STEPS}")


@pytest.fixture
def no_grace(sandbox: Sandbox) -> Iterator[None]:
    """Let preemption come without a grace period."""
    change = ("scontrol", "update", "PartitionName=batch")
    sandbox.slurm(*change, "GraceTime=0")
    yield
    sandbox.slurm(*change, f"GraceTime={sandbox.options['grace']}")


def lost_nothing(training: Training, calm: dict[int, float], cause: str, steps: int) -> None:
    """Assert that every attempt went on right where the one before it had left."""
    *told, last = training.causes()
    assert told, "it was never told to stop"
    assert set(told) == {cause}
    assert last is None
    assert training.steps == list(range(steps))
    assert training.losses == first(calm, steps)


@pytest.mark.release
@pytest.mark.main
def test_preemption_costs_no_step(training: Training, calm: dict[int, float]) -> None:
    """Preempted with a grace period: saved at the boundary, requeued, and not one step twice."""
    training.launch(*SLOWLY)
    training.wait_for_step(5)
    training.strike("preempt partition=urgent")
    training.completed(attempts=2)
    lost_nothing(training, calm, "preempted", STEPS)


@pytest.mark.usefixtures("no_grace")
def test_preemption_without_grace_costs_no_step(training: Training, calm: dict[int, float]) -> None:
    """Without a grace period there is KillWait, and it is enough."""
    training.launch(*SLOWLY)
    training.wait_for_step(5)
    training.strike("preempt partition=urgent")
    training.completed(attempts=2)
    lost_nothing(training, calm, "preempted", STEPS)


def test_requeue_by_an_administrator_costs_no_step(training: Training, calm: dict[int, float]) -> None:
    """`scontrol requeue`: saved, and started anew by Slurm alone."""
    training.launch(*SLOWLY)
    training.wait_for_step(5)
    training.strike("requeue")
    training.completed(attempts=2)
    lost_nothing(training, calm, "notice", STEPS)
    assert not training.events("requeue_asked")


@pytest.mark.release
@pytest.mark.main
def test_time_limit_is_left_ahead_of_without_a_signal(training: Training, calm: dict[int, float]) -> None:
    """A run that takes longer than its time limit goes on in the next attempt, by itself."""
    training.launch(
        *("resources.timeout_min=1", "runtime.save_before_timeout_s=15", *TOO_LONG),
        "checkpoint.interval_steps=1000",
    )
    # On a busy machine an attempt may spend most of its minute on its start.
    attempts = training.over(patience_s=200)["attempt"]
    training.completed(attempts)
    lost_nothing(training, calm, "time_limit", LONGEST)
    assert not [event for event in training.events("notice_heard") if event["signal"].startswith("SIG")]


def test_time_limit_is_left_ahead_of_by_slurms_warning(training: Training, calm: dict[int, float]) -> None:
    """The same by `sbatch --signal`, which only the batch side hears."""
    training.launch(
        *("resources.timeout_min=1", "runtime.save_before_timeout_s=0", *TOO_LONG),
        "+resources.additional_parameters.signal='B:USR1@20'",
    )
    attempts = training.over()["attempt"]
    training.completed(attempts)
    lost_nothing(training, calm, "time_limit", LONGEST)
    assert {event["signal"] for event in training.events("notice_heard")} == {"SIGUSR1"}
