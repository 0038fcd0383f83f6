"""Damaged checkpoints and full disks on a real Slurm: said, survived, and never loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.training import STEPS, Training, first

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]

PASSED_OVER = "skipped a checkpoint"


def held(training: Training, *words: str) -> None:
    """Hold the run at step 17, with step 15 saved."""
    training.launch("+params.hold=17", *words)
    training.wait((training.folder / "waiting").exists, "the run waits")
    newest = "checkpoints/step-00000015.*/manifest.json"
    training.wait(lambda: list(training.folder.glob(newest)), "step 15 is saved")


def kill(training: Training) -> None:
    """Kill a rank of the held run, and let the next round pass."""
    training.strike("kill rank=1")
    training.go()


@pytest.mark.parametrize("damage", ["flip", "truncate", "tear"])
def test_damaged_checkpoint_is_passed_over_and_said(
    training: Training, calm: dict[int, float], damage: str
) -> None:
    """A flipped bit, a file cut short or a missing manifest: the one before is loaded."""
    held(training)
    training.strike(damage)
    kill(training)
    training.completed()
    assert training.causes() == ["signal", None]
    (_, again) = training.events("step_reached")
    assert again["step"] == 10
    assert PASSED_OVER in training.log(1, 1)
    assert training.losses == first(calm, STEPS)


def test_poisonous_checkpoint_is_given_up_after_two_deaths(
    training: Training, calm: dict[int, float]
) -> None:
    """What is whole, but kills whoever has loaded it, is not loaded a third time."""
    held(training, "+params.poisoned=15", "recovery=patient", "recovery.backoff_s=0.1")
    kill(training)
    training.completed()
    assert training.causes() == ["signal", "exception", "exception", None]
    assert [event["step"] for event in training.events("step_reached")] == [0, 15, 15, 10]
    assert PASSED_OVER in training.log(1, 3)
    assert training.losses == first(calm, STEPS)


def test_full_disk_costs_saves_but_no_checkpoint(
    training: Training, calm: dict[int, float], tmp_path: Path
) -> None:
    """Where two fit, these stay and the run goes on; it fails when its last state does not fit."""
    disk = tmp_path / "disk"
    disk.mkdir()
    training.launch(
        *("resources.nodes=1", "resources.tasks_per_node=2", f"checkpoint.dir={disk}"),
        f"cluster.setup=['mount -t tmpfs -o size=3m none {disk}']",
        *("+params.floats=300000", "chaos=['kill rank=1 step=22']", "checkpoint.patience_s=3"),
    )
    try:
        run = training.over()
    finally:
        for (node,) in training.nodes_by_round()[:1]:
            training.sandbox.slurm("srun", f"--nodelist={node}", "umount", str(disk))
    assert (run["state"], run["failure"]["cause"]) == ("failed", "disk_full")
    assert training.causes() == ["signal", "disk_full"]
    assert [event["step"] for event in training.events("step_reached")] == [0, 10]
    warned = [event["message"] for event in training.events("warned")]
    assert any(message.startswith("checkpoint of step 15: ") for message in warned), warned
    assert training.losses == first(calm, STEPS)
