"""A round whose agents are played by a test, through `round_turns.advance_round` alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from hpckit.model import events, messages
from hpckit.model.failure import ExitReason, RankExit
from hpckit.model.launch import LaunchConfig, Resources, Runtime
from hpckit.planning.recovery.round_view import RoundView
from hpckit.planning.rounds.round_state import create_round_state
from hpckit.planning.rounds.round_turns import (
    AgentLost,
    Heard,
    Instruction,
    NoteStep,
    Send,
    Turn,
    advance_round,
)
from hpckit.values import replace

MEMBERS = {0: "n1", 4: "n5", 2: "n3"}
"""The members by node rank; two ranks run on each."""
NUMBER = 3
BEGAN = 1000.0
AT = datetime(2026, 1, 2, tzinfo=UTC)
RUNTIME = Runtime(agent_timeout_s=120, stop_grace_s=20, notice_grace_s=50, node_timeout_s=30)


def order(place: int) -> messages.StartRound:
    """Return the order to start the ranks of the node at this place."""
    return messages.StartRound(
        round=NUMBER,
        nodes="n1,n5,n3",
        address=f"10.0.0.{place}",
        node_rank=place,
        first_rank=2 * place,
        local_world_size=2,
        world_size=6,
        num_nodes=3,
        master_addr="10.0.0.0",
        master_port=0,
        mtbf_hours=1.0,
        save_cost=None,
    )


class Scene:
    """Round 3 of two ranks on each of three nodes: `found` is what it said is to be done."""

    def __init__(self) -> None:
        settings = LaunchConfig(resources=Resources(nodes=3, tasks_per_node=2), runtime=RUNTIME)
        orders = {rank: order(place) for place, rank in enumerate(MEMBERS)}
        self.state = create_round_state(NUMBER, MEMBERS, settings, BEGAN, orders)
        self.found: list[Instruction] = []
        self.clock = BEGAN

    def take(self, *turns: Heard | Turn, at_s: float | None = None) -> list[Instruction]:
        """Have this happen, at this many seconds after the beginning; return what is to be done."""
        self.clock = self.clock if at_s is None else BEGAN + at_s
        found: list[Instruction] = []
        for turn in turns:
            self.state, more = advance_round(self.state, turn, self.clock, AT)
            found += more
        self.found += found
        return found

    def start(self) -> Scene:
        """Have the ranks start."""
        self.take(Turn.begin, Heard(0, messages.PortReserved(port=4711)))
        return self

    def pass_time(self) -> list[Instruction]:
        """Have nothing come until the phase has lasted as long as it may."""
        return self.take(Turn.time, at_s=self.state.until - BEGAN)

    def view(self, *standing: str, given_up_s: float = 0.0) -> RoundView:
        """Return the state for decisions."""
        return self.state.build_view_for_decisions(standing, given_up_s, self.clock, AT)

    def recorded(self) -> list[type[events.Event]]:
        """Return the kinds of events that were to be recorded, in order."""
        return [type(one) for one in self.found if isinstance(one, events.Event)]


def orders_of(found: Iterable[Instruction]) -> list[type[messages.Message]]:
    """Return the kinds of messages that were to be sent."""
    return [type(one.message) for one in found if isinstance(one, Send)]


def notes_of(found: Iterable[Instruction]) -> list[tuple[int, bool]]:
    """Return the steps that were to be noted, and whether each is the last."""
    return [(one.step, one.last) for one in found if isinstance(one, NoteStep)]


def step(number: int, total: int | None = 10, usual_s: float = 2.0) -> Heard:
    """Return that a step begins."""
    return Heard(0, messages.StepBegun(rank=0, step=number, total=total, usual_s=usual_s))


def lost(sender: int, silent_s: float = 9.0) -> Heard:
    """Return that an agent is gone."""
    return Heard(sender, AgentLost(node_rank=sender, silent_s=silent_s))


def ended(*ranks: int, round_: int = NUMBER, **values: Any) -> list[Heard]:
    """Return that these ranks end, in this order: well, unless `values` say otherwise."""
    nodes = list(MEMBERS.items())
    told: dict[str, Any] = {"code": 0, "reason": ExitReason.returned, "at": AT} | values
    found = []
    for rank in ranks:
        sender, node = nodes[rank // 2]
        exit_ = RankExit(rank=rank, node=node, **told)
        found.append(Heard(sender, messages.RankEnded(round=round_, exit=exit_)))
    return found


def failed(*ranks: int, **values: Any) -> list[Heard]:
    """Return that these ranks end with an exception."""
    how: dict[str, Any] = {"code": 1, "reason": ExitReason.raised, "exception": "ValueError"}
    return ended(*ranks, **(how | values))


def with_alone(heard: Iterable[Heard], seconds: Iterable[float]) -> list[Heard]:
    """Return these ends of ranks that have met no other for so long."""
    return [
        replace(one, message=replace(one.message, alone_s=alone_s))  # type: ignore[call-arg]
        for one, alone_s in zip(heard, seconds, strict=True)
    ]
