"""Nodes of a real Slurm that are drained: a run moves, leaves or stays, and loses no step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from integration.training import Training, first
from tiers import thorough

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]

STEPS = 80
"""So many that a busy machine notices what is done to the run before its last step."""
OFTEN = ("+params.pause_s=0.2", f"+params.steps={STEPS}", "runtime.drain_poll_interval_s=1")
REASON = "NHC: GPU 3 has fallen off the bus"

Drain = Callable[[str], None]


@pytest.fixture
def drain(training: Training) -> Iterator[Drain]:
    """Return what drains a node until the test is over."""
    drained: list[str] = []

    def start(node: str) -> None:
        change = ("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={REASON}")
        training.sandbox.slurm(*change)
        drained.append(node)

    yield start
    for node in drained:
        training.sandbox.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")


def told(training: Training) -> list[tuple[str, str, str]]:
    """Return what was recorded of drained nodes: node, reason, action."""
    events = training.events("node_draining")
    return [(event["node"], event["reason"], event["action"]) for event in events]


@pytest.mark.parametrize("place", [0, 1], ids=["supervisor", "agent"])
def test_drained_node_is_left_for_the_spare(
    training: Training, calm: dict[int, float], drain: Drain, place: int
) -> None:
    """Its ranks take all the time they need, a spare takes over, and no step is done twice."""
    training.launch(*OFTEN, "resources.spare_nodes=1", "runtime.notice_grace_s=0.05")
    training.wait_for_step(12)
    before = training.nodes()
    drain(before[place])
    training.completed()
    assert training.causes() == ["drained", None]
    assert told(training) == [(before[place], REASON, "move")]
    after = training.nodes()
    assert after[1 - place] == before[1 - place]
    assert after[place] not in before
    assert training.steps == list(range(STEPS))
    assert training.losses == first(calm, STEPS)


@thorough
@pytest.mark.main
def test_drained_node_is_left_for_a_new_attempt(
    training: Training, calm: dict[int, float], drain: Drain
) -> None:
    """With recovery.on_drain=leave the run is requeued where it has no spare, saved before."""
    training.launch(*OFTEN, "recovery.on_drain=leave")
    training.wait_for_step(12)
    _, leaving = training.nodes()
    drain(leaving)
    training.completed(attempts=2)
    assert training.causes() == ["drained", None]
    assert told(training) == [(leaving, REASON, "leave")]
    assert leaving not in training.nodes()
    assert training.steps == list(range(STEPS))
    assert training.losses == first(calm, STEPS)


def test_drained_node_is_kept_where_none_can_take_over(training: Training, drain: Drain) -> None:
    """Without a spare nothing is interrupted, also not where the spare is drained; it is said."""
    training.launch(*OFTEN, "resources.spare_nodes=1")
    training.wait_for_step(5)
    (spare,) = set(training.sandbox.nodes[:3]) - set(training.nodes())
    drain(spare)
    training.wait_for_step(15)
    member = training.nodes()[1]
    drain(member)
    run = training.completed()
    assert training.causes() == [None]
    assert told(training) == [(member, REASON, "stay")]
    assert any(member in said and REASON in said for said in run["warnings"])
