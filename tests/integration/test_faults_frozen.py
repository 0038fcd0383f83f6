"""Agents, steps, supervisors and jobs that stop on a real Slurm while their nodes are fine."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from integration.training import STEPS, Training, first

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]

SLOWLY = "+params.pause_s=0.2"
IMPATIENT = "runtime.node_timeout_s=2"
"""Agents give a silent supervisor up after ten seconds."""


def processes(training: Training, *words: str) -> dict[str, int]:
    """Return the processes of the launch whose words these are, by the node they run on."""
    folder, found = str(training.project.launch_folder()), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_text().split("\0")
            environ = (entry / "environ").read_text().split("\0")
        except OSError:
            continue
        if folder in command and {*words} <= {*command} and "srun" not in Path(command[0]).name:
            variables = dict(one.partition("=")[::2] for one in environ)
            found[variables.get("SLURMD_NODENAME", "")] = int(entry.name)
    return found


def no_node_was_lost(training: Training) -> None:
    """Assert that no node is blamed or left out."""
    assert training.events("node_lost") == []
    assert training.events("requeue_asked") == []
    assert len({*training.nodes_by_round()}) == 1


@pytest.mark.parametrize("what", ["agent", "step"])
def test_killed_agent_or_step_costs_neither_node_nor_queue(
    training: Training, calm: dict[int, float], what: str
) -> None:
    """A new step in the same allocation takes its place."""
    training.launch(SLOWLY, "+params.hold=30")
    training.wait_for_step(12)
    if what == "agent":
        agents = processes(training, "hpckit.runtime.agent")
        os.kill(agents[training.nodes()[1]], signal.SIGKILL)
    else:
        training.sandbox.slurm("scancel", f"{training.job}.0")
    training.go()
    training.completed()
    assert training.causes() == ["launcher_lost", None]
    no_node_was_lost(training)
    assert training.losses == first(calm, STEPS)


def test_suspended_job_goes_on_when_it_is_resumed(training: Training, calm: dict[int, float]) -> None:
    """`scontrol suspend` for longer than anybody's patience: not even a new round."""
    training.launch(SLOWLY, IMPATIENT)
    training.wait_for_step(12)
    training.sandbox.slurm("scontrol", "suspend", training.job)
    time.sleep(15)
    training.sandbox.slurm("scontrol", "resume", training.job)
    run = training.completed()
    assert training.causes() == [None]
    goodput = run["goodput"]
    assert 12 <= goodput["suspended_s"] <= 18
    assert goodput["productive_s"] < 0.1 * STEPS + 10
    assert [one["kind"] for one in run["verdicts"] if one["kind"] == "communication_bound"] == []
    assert training.steps == list(range(STEPS))
    assert training.losses == first(calm, STEPS)


def test_frozen_supervisor_costs_a_requeue_and_no_empty_job(
    training: Training, calm: dict[int, float]
) -> None:
    """Its kernel accepts connections, but it greets nobody: its agents start the run anew."""
    training.launch(SLOWLY, IMPATIENT, "+params.steps=90")
    training.wait_for_step(7)
    (supervisor,) = processes(training, "supervise").values()
    os.kill(supervisor, signal.SIGSTOP)
    training.completed(attempts=2)
    assert training.events("node_lost") == []
    assert training.losses == first(calm, 90)
