"""Promises of what is known of a round: a fold of messages, without processes, waits or sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hpckit.model import events
from hpckit.model.failure import Cause, ExitReason, RankExit
from hpckit.model.launch import LaunchConfig, Resources
from hpckit.record.layout import AttemptPaths
from hpckit.runtime.channel import messages
from hpckit.runtime.supervisor.agents import AgentLost
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.round_state import RoundState

MEMBERS = {0: "n1", 4: "n5", 2: "n3"}
BEGAN = 1000.0
AT = datetime(2026, 1, 2, tzinfo=UTC)


class Scene:
    """Round 3 of two ranks on each of three nodes, and what is recorded of it."""

    def __init__(self, folder: Path) -> None:
        self.told: list[events.Event] = []
        self.state = RoundState(
            number=3,
            members=MEMBERS,
            settings=LaunchConfig(resources=Resources(nodes=3, tasks_per_node=2)),
            journal=Journal(paths=AttemptPaths(folder), heard=self.told.append),
            noticed=asyncio.Event(),
            began_at=BEGAN,
        )

    def take(self, *heard: tuple[int, messages.Message], after_s: float = 1.0) -> None:
        """Take in messages, each with its agent's rank, so long after the beginning."""

        async def follow() -> None:
            for sender, message in heard:
                self.state.take(sender, message, BEGAN + after_s)

        asyncio.run(follow())

    def kinds(self) -> list[type[events.Event]]:
        """Return the kinds of events that were recorded, in order."""
        return [type(event) for event in self.told]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return a round that has just begun."""
    return Scene(tmp_path)


def ended(ranks: Iterable[int], **values: object) -> list[tuple[int, messages.Message]]:
    """Return the ends of these ranks, in this order."""
    nodes = list(MEMBERS.items())
    return [
        (
            nodes[rank // 2][0],
            messages.RankEnded(
                round=3,
                exit=RankExit(rank=rank, node=nodes[rank // 2][1], at=AT, **values),  # type: ignore[arg-type]
                alone_s=0.0,
            ),
        )
        for rank in ranks
    ]


def test_steps_tell_how_far_a_round_came_and_what_is_left(scene: Scene) -> None:
    """The first step is recorded once; a message that comes late takes nothing back."""
    steps = [messages.StepBegun(rank=0, step=step, total=10, usual_s=2.0) for step in (4, 6, 5)]
    scene.take(*((0, step) for step in steps), after_s=7)
    state = scene.state
    assert (state.first_step, state.step, state.remaining) == (4, 6, timedelta(seconds=8))
    assert state.start_up == timedelta(seconds=7)
    assert scene.kinds() == [events.StepReached]


def test_lost_node_is_named_by_its_place_and_ends_the_round(scene: Scene) -> None:
    """A spare node that is lost matters to nobody; a member's ranks are expected no more."""
    scene.take((7, AgentLost(node_rank=7, silent_s=9.0)))
    assert (scene.state.over, scene.state.lost) == (False, {})
    scene.take((4, AgentLost(node_rank=4, silent_s=9.0)), *ended([0, 1, 4, 5], code=0))
    assert scene.state.over
    assert scene.state.exits.accounted
    assert not scene.state.exits.complete
    view = scene.state.view(("n1", "n3"), 0.0, BEGAN + 2)
    assert view.failure is not None
    assert (view.failure.cause, view.failure.node) == (Cause.node_lost, "n5")
    assert view.silent == timedelta(seconds=9)


def test_round_of_which_agents_heard_nothing_was_given_up(scene: Scene) -> None:
    """Then it is the supervisor that was silent, and no node is to blame."""
    scene.take((4, AgentLost(node_rank=4, silent_s=0.0)))
    view = scene.state.view((), 60.0, BEGAN + 2)
    assert view.failure is not None
    assert (view.failure.cause, view.failure.node) == (Cause.launcher_lost, None)


def test_what_was_said_in_an_earlier_round_is_not_of_this_one(scene: Scene) -> None:
    """Its ranks' ends may come when the next round has begun."""
    scene.take(
        (0, messages.RankEnded(round=2, exit=RankExit(rank=0, node="n1", code=1), alone_s=0.0))
    )
    assert len(scene.state.exits) == 0
    assert scene.told == []


def test_ranks_that_were_asked_to_leave_are_cut_short(scene: Scene) -> None:
    """Whatever ends after that did not end by itself."""
    scene.take(*ended([0], code=0))
    assert not scene.state.view((), 0.0, BEGAN).cut_short
    scene.state.asked = True
    scene.take(*ended([1], code=0, reason=ExitReason.left))
    assert scene.state.view((), 0.0, BEGAN).cut_short
