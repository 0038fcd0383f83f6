"""Nodes and daemons that go away on a real Slurm: replaced, done without, and fenced."""

from __future__ import annotations

import json

import pytest
from integration.training import STEPS, Training, first

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]

SLOWLY = "+params.pause_s=0.2"
HELD = (SLOWLY, "+params.hold=30")
"""Waits at a step for the strike, however long that takes on a busy machine."""


def test_dead_node_is_replaced_by_the_spare(training: Training, calm: dict[int, float]) -> None:
    """With a spare node, a crash of another costs a round, not an attempt."""
    training.launch(*HELD, "resources.spare_nodes=1")
    training.wait_for_step(12)
    host, lost = training.nodes()
    training.strike(f"kill_node node={lost}")
    training.go()
    training.completed()
    assert training.causes() == ["node_lost", None]
    kept, spare = training.nodes()
    assert kept == host
    assert spare not in {host, lost}
    assert training.losses == first(calm, STEPS)


def test_run_shrinks_where_a_node_dies_and_fewer_will_do(training: Training, calm: dict[int, float]) -> None:
    """With resources.min_nodes, what is left goes on from the last checkpoint at once."""
    training.launch(*HELD, "resources.min_nodes=1")
    training.wait_for_step(12)
    host, lost = training.nodes()
    training.strike(f"kill_node node={lost}")
    training.go()
    training.completed()
    assert training.causes() == ["node_lost", None]
    assert training.nodes() == (host,)
    again = training.events("step_reached")[1]["step"]
    assert again % 5 == 0
    assert first(training.losses, again) == first(calm, again)
    assert set(training.losses) == set(range(STEPS))


@pytest.mark.main
def test_run_without_a_spare_is_requeued_without_the_dead_node(
    training: Training, calm: dict[int, float]
) -> None:
    """Where all nodes are needed, the next attempt runs on others, and waits for no timeout."""
    training.launch(*HELD)
    training.wait_for_step(12)
    _, lost = training.nodes()
    training.strike(f"kill_node node={lost}")
    training.go()
    training.completed(attempts=2)
    assert training.causes() == ["node_lost", None]
    assert lost not in training.nodes()
    assert training.losses == first(calm, STEPS)


@pytest.mark.parametrize("place", [0, 1], ids=["supervisor", "agent"])
def test_node_that_was_cut_off_and_comes_back_changes_nothing(
    training: Training, calm: dict[int, float], place: int
) -> None:
    """Who was cut off, with a supervisor or without, commits nothing and requeues nothing later."""
    training.launch(SLOWLY, "runtime.node_timeout_s=4", "+params.steps=90")
    training.wait_for_step(7)
    lost = training.nodes()[place]
    training.strike(f"cut_node node={lost}")
    training.wait_for_step(35, attempt=2)
    before = first_attempts_checkpoints(training)
    # Slurm may take a while to have a node back that is still busy with a job it has lost.
    training.sandbox.attempt("heal-node", lost)
    training.completed(attempts=2)
    assert lost not in training.nodes()
    assert first_attempts_checkpoints(training) <= before
    assert max(training.epochs()) == 2
    assert training.losses == first(calm, 90)


def first_attempts_checkpoints(training: Training) -> set[str]:
    """Return the names of what the first attempt has committed."""
    return {one.parent.name for one in training.folder.glob("checkpoints/*.e1.*/manifest.json")}


def test_run_outlives_the_node_of_its_supervisor(training: Training, calm: dict[int, float]) -> None:
    """The agents that are left see to a new attempt, once, elsewhere."""
    training.launch(*HELD, "resources.spare_nodes=1", "runtime.node_timeout_s=4")
    training.wait_for_step(12)
    host, _ = training.nodes()
    training.strike(f"kill_node node={host}")
    training.go()
    training.completed(attempts=2)
    assert host not in training.nodes()
    assert training.losses == first(calm, STEPS)


def test_rank_is_restarted_while_the_controller_is_away(training: Training, calm: dict[int, float]) -> None:
    """No part of Slurm's is needed for a new round."""
    training.launch(SLOWLY, "chaos=['kill rank=1 step=30']")
    training.wait_for_step(5)
    training.strike("stop_controller")
    training.wait(lambda: len(training.events("step_reached")) == 2, "a new round trains")
    training.sandbox.act("start-controller")
    training.completed()
    assert training.causes() == ["signal", None]
    assert training.losses == first(calm, STEPS)
    assert json.loads((training.folder / "chaos.jsonl").read_text())["outcome"] == "injected"
