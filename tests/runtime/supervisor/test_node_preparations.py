"""What the supervisor does until nodes are ready: whom it asks, for whom it waits, whom it blames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hpckit.features.staging.transfer import assign_providers
from hpckit.model import messages
from hpckit.model.events import Event
from hpckit.model.failure import Cause, Failure
from hpckit.model.node_setup import StagedData
from hpckit.runtime.supervisor.deadline import Deadline
from hpckit.runtime.supervisor.node_preparations import NodePreparations


@dataclass(slots=True)
class Stub:
    """An agent that says where it listens."""

    node: str
    node_rank: int
    port: int = 4000
    channel: Any = field(default_factory=lambda: SimpleNamespace(peer="10.0.0.1", here="10.0.0.9"))


@dataclass(slots=True)
class StubAgents:
    """Agents that answer by `answer`, of their node; None: not at all."""

    standing_peers: tuple[Stub, ...]
    answer: Callable[[str, messages.Message], messages.Message | None]
    take: Callable[[Any, Any], None] = print
    left: dict[str, int] = field(default_factory=dict)
    inbox: asyncio.Queue[tuple[int, messages.Message]] = field(default_factory=asyncio.Queue)
    sent: list[tuple[str, messages.Message]] = field(default_factory=list)

    async def send_message(self, rank: int, order: messages.Message) -> None:
        """Take an order, and answer it."""
        peer = next(peer for peer in self.standing_peers if peer.node_rank == rank)
        self.sent.append((peer.node, order))
        answer = self.answer(peer.node, order)
        if answer is not None:
            self.take(peer, answer)

    async def receive_message(self, _: float, __: asyncio.Event | None = None) -> Any:
        """Return what is in the inbox, or nothing after a moment."""
        await asyncio.sleep(0)
        return None if self.inbox.empty() else self.inbox.get_nowait()


@dataclass(slots=True)
class Scene:
    """Preparations of some nodes, and what was recorded."""

    agents: StubAgents
    recorded: list[Event] = field(default_factory=list)
    noticed: asyncio.Event = field(default_factory=asyncio.Event)

    def preparations(self, *, needed: bool = True) -> NodePreparations:
        """Return them; runs that need none have no feature that chooses."""
        made = NodePreparations.__new__(NodePreparations)
        values: dict[str, Any] = {
            "assignment": None,
            "agents": self.agents,
            "steps": None,
            "_noticed_at": None,
            "journal": SimpleNamespace(record_event=self.recorded.append),
            "_out_s": {},
            "_out": set(),
            "_asked": {},
            "_providers": {},
            "_ready": {},
            "_problems": {},
            "notices": SimpleNamespace(noticed=self.noticed, deadline=Deadline(lead=None)),  # type: ignore[arg-type]
            "_choose": assign_providers if needed else None,
        }
        for name, value in values.items():
            setattr(made, name, value)
        self.agents.take = made.take_message
        return made


def _ready(node: str, _: messages.Message) -> messages.Message:
    staged = StagedData(node=node, name="big", bytes=10, seconds=1.0, how="tree")
    return messages.Prepared(staged=(staged,), complete=True)


def _scene(answer: Callable[[str, messages.Message], messages.Message | None] = _ready) -> Scene:
    return Scene(StubAgents(tuple(Stub(f"n{rank}", rank) for rank in range(5)), answer))


def test_a_run_without_data_sends_nothing() -> None:
    """It pays neither a message nor a wait."""
    scene = _scene()
    assert asyncio.run(scene.preparations(needed=False).prepare_nodes(["n0", "n1"])) is None
    assert scene.agents.sent == []


def test_each_node_is_asked_once_and_told_its_ancestors_alone() -> None:
    """Spares are prepared beside; another round of the same agents costs no message."""
    scene = _scene()
    preparations = scene.preparations()

    async def go() -> list[Failure | None]:
        return [await preparations.prepare_nodes(["n0", "n1", "n2", "n3"]) for _ in range(2)]

    assert asyncio.run(go()) == [None, None]
    orders = {node: order for node, order in scene.agents.sent if isinstance(order, messages.Prepare)}
    assert len(scene.agents.sent) == len(orders) == 5
    assert [len(orders[f"n{rank}"].providers) for rank in range(5)] == [0, 1, 2, 2, 2]
    assert orders["n1"].providers == ("10.0.0.1:4000",)
    assert [event.kind for event in scene.recorded] == ["staged"] * 5


def test_an_agent_that_is_new_gets_it_from_those_that_are_ready() -> None:
    """A node that comes later, or comes back, reads nothing of the source."""
    scene = _scene()
    preparations = scene.preparations()

    async def go() -> None:
        await preparations.prepare_nodes(["n0", "n1"])
        scene.agents.standing_peers = (*scene.agents.standing_peers[:4], Stub("n4", 4))
        await preparations.prepare_nodes(["n0", "n4"])

    asyncio.run(go())
    node, order = scene.agents.sent[-1]
    assert (len(scene.agents.sent), node) == (6, "n4")
    assert isinstance(order, messages.Prepare)
    assert len(order.providers) == 3


@pytest.mark.parametrize("cause", [Cause.data_damaged, Cause.scratch_full])
def test_a_node_that_cannot_have_its_data_is_named_and_asked_again(cause: Cause) -> None:
    """The failure has its cause and its node; if a later round takes the node, it is tried once more."""
    tries: list[str] = []

    def answer(node: str, order: messages.Message) -> messages.Message:
        tries.append(node)
        if node == "n1" and tries.count(node) == 1:
            return messages.Prepared(cause=cause, problem="no")
        return _ready(node, order)

    scene = _scene(answer)
    preparations = scene.preparations()

    async def go() -> list[Failure | None]:
        return [await preparations.prepare_nodes(["n0", "n1"]) for _ in range(2)]

    first, second = asyncio.run(go())
    assert first is not None
    assert (first.cause, first.node, second) == (cause, "n1", None)


def test_a_notice_ends_the_wait() -> None:
    """A cancellation is not held up by data on its way."""
    scene = _scene(lambda *_: None)

    async def go() -> Failure | None:
        asyncio.get_running_loop().call_later(0.05, scene.noticed.set)
        return await scene.preparations().prepare_nodes(["n0"])

    assert asyncio.run(go()) is None


def test_a_problem_of_a_spare_keeps_no_round() -> None:
    """Only the nodes of the round count."""
    scene = _scene(lambda node, order: None if node == "n4" else _ready(node, order))
    assert asyncio.run(scene.preparations().prepare_nodes(["n0", "n1", "n2", "n3"])) is None


def test_the_time_of_results_is_part_of_the_deadline() -> None:
    """What nodes took to bring results out is left for it before the time limit."""
    scene = _scene()
    preparations = scene.preparations()
    peer = scene.agents.standing_peers[0]
    preparations.take_message(peer, messages.StagedOut(name="r", bytes=10, seconds=7.0))  # type: ignore[arg-type]
    assert preparations.notices.deadline.results.total_seconds() == 7
    assert [event.kind for event in scene.recorded] == ["staged_out"]
