"""Runs of many months that lose nodes and get them back, with the real decisions and no process."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.failure import Cause, ExitReason, Failure, RankExit
from hpckit.model.launch import LaunchConfig, Recovery, Resources
from hpckit.model.parallel.settings import FallbackLayout, Parallel
from hpckit.model.states import RoundAction
from hpckit.planning.recovery.boundary import decide_on_resize, list_nodes_for_resize
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import EndAttempt, NewRound, RoundView, build_round_ended_event
from hpckit.runtime.supervisor.resizing import Resizing
from hpckit.runtime.supervisor.wanted_size import WantedSize

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """A run of `nodes` nodes, replicas of `whole`, whose agents are names alone."""

    def __init__(self, nodes: int, whole: int, *, spare: int = 0, **parallel: Any) -> None:
        """Begin on n1, n2, and so on."""
        resources = Resources(nodes=nodes, spare_nodes=spare, min_nodes=1, tasks_per_node=1)
        self.settings = LaunchConfig(
            resources=resources,
            parallel=Parallel(replicate="rest", shard=whole, **parallel),
            recovery=Recovery(restarts={"node_lost": 999}),
        )
        self.past, self.at = Ledger(), NEW_YEAR
        self.orders: list[tuple[int, int]] = []
        self.agents: Any = SimpleNamespace(
            settings=self.settings, peers={}, arrivals=Counter(), standing_peers=()
        )
        for rank in range(nodes + spare):
            self._add(rank, f"n{rank + 1}", None)
        self.members = tuple(f"n{rank + 1}" for rank in range(nodes))
        self.unhealthy: dict[str, str] = {}
        state = SimpleNamespace(
            members=self.members,
            is_stepping=True,
            remaining_time=timedelta(days=300),
            start_up=timedelta(seconds=20),
        )
        self.round: Any = SimpleNamespace(view_now=self.view, state=state)
        self.wanted_size = WantedSize(self.agents)  # type: ignore[arg-type]  # names alone
        policy = self.settings.recovery
        allocation = SimpleNamespace(regrow=self._order)
        outlook: Any = SimpleNamespace(
            assignment=SimpleNamespace(allocation=allocation),
            stepping_round=self.round,
            wanted_size=self.wanted_size,
            judge_round=lambda rule, view: rule(view, policy, self.past),
        )
        journal: Any = SimpleNamespace(record_warning=lambda _: None)
        self.resizing = Resizing(journal, self.agents, outlook)  # type: ignore[arg-type]
        asyncio.run(self.resizing.update_for_new_round(self.members))

    def _add(self, rank: int, node: str, satellite: str | None) -> None:
        peer = SimpleNamespace(node=node, node_rank=rank, satellite=satellite, leaving="")
        self.agents.peers[rank] = peer
        self.agents.standing_peers = tuple(self.agents.peers.values())
        self.agents.list_satellite_peers = lambda job: tuple(
            peer for peer in self.agents.peers.values() if peer.satellite == job
        )

    def _order(self, replicas: int, idle: int) -> tuple[str, int]:
        nodes = replicas * self.wanted_size.size.replica_nodes - idle
        self.orders.append((replicas, nodes))
        return str(len(self.orders)), nodes

    def view(self) -> RoundView:
        """Return the present round as decisions see it."""
        sizes = self.wanted_size.round_sizes
        return RoundView(
            round=1,
            at=self.at,
            exits=(),
            first_step=0,
            step=int((self.at - NEW_YEAR).total_seconds()),
            saved=True,
            members=self.members,
            standing=tuple(peer.node for peer in self.agents.standing_peers),
            ran=timedelta(minutes=10),
            unhealthy=self.unhealthy,
            wanted=sizes.wanted,
            fewest=sizes.fewest,
            replica_nodes=sizes.replica_nodes,
            fallback_nodes=sizes.fallback,
            resizing=self.wanted_size.is_round_losing_satellites,
            requeues=True,
        )

    def follow(self, action: object) -> None:
        """Begin the round that was decided on."""
        assert isinstance(action, NewRound), action
        ended = build_round_ended_event(self.view(), action.because, RoundAction.new_round)
        self.past = self.past.after_round(ended, 1)
        self.members = self.round.state.members = action.nodes
        asyncio.run(self.resizing.update_for_new_round(self.members))

    def lose(self, node: str) -> None:
        """Have a node die, a minute later."""
        self.at += timedelta(minutes=1)
        peers = self.agents.peers
        peers.pop(next(rank for rank, peer in peers.items() if peer.node == node))
        self.agents.standing_peers = tuple(peers.values())
        if node in self.members:
            lost = Failure(cause=Cause.node_lost, message="", node=node, signature="node_lost")
            self.follow(
                decide_after_round(replace(self.view(), failure=lost), self.settings.recovery, self.past)
            )

    def join(self, job: str, *nodes: str) -> None:
        """Have a satellite bring nodes."""
        for node in nodes:
            self._add(max(self.agents.peers, default=0) + 1000, node, job)
            self.agents.arrivals[job] += 1
            self.past = self.past.add_returned_node(node)
        if job not in self.wanted_size.unasked:
            self.wanted_size.ask_for_resize()

    def bring(self) -> None:
        """Have all nodes come that were ordered, until no more are."""
        arrived = self.agents.arrivals
        while left := [one for one in range(1, len(self.orders) + 1) if str(one) not in arrived]:
            for number in left:
                nodes = range(self.orders[number - 1][1])
                self.join(str(number), *(f"s{number}-{place}" for place in nodes))
            self.save(3)

    def save(self, times: int = 1) -> None:
        """Save, ten minutes later, and follow what is decided then."""
        for _ in range(times):
            self.at += timedelta(minutes=10)
            asyncio.run(self.resizing.regrow_after_save(timedelta(seconds=1)))
            if self.wanted_size.asked:
                action = decide_on_resize(self.view(), self.settings.recovery, self.past)
                if isinstance(action, NewRound):
                    self.follow(action)


def test_idle_node_that_takes_another_place_is_missed_again() -> None:
    """A satellite counts on n3, which then takes the place of n2: another one completes it."""
    world = World(4, 2)
    world.lose("n4")
    world.save()
    assert world.orders == [(1, 1)]
    world.lose("n2")
    assert world.members == ("n1", "n3")
    world.save(5)
    assert world.orders == [(1, 1)], "one is on its way"
    world.bring()
    assert (len(world.members), world.orders) == (4, [(1, 1), (1, 1)])


def test_replica_that_is_lost_later_comes_back_too() -> None:
    """One came back; of another one, days later, nobody has to think either."""
    world = World(3, 1)
    world.lose("n3")
    world.save()
    world.bring()
    assert world.members == ("n1", "n2", "s1-0")
    world.at += timedelta(days=7)
    world.lose("n2")
    world.save(9)
    world.bring()
    assert (len(world.members), len(world.orders)) == (3, 2)


def test_satellite_of_a_user_that_completes_nothing_stops_nothing() -> None:
    """It stands there, and what was lost is ordered all the same."""
    world = World(4, 2)
    world.join("900", "u1")
    world.save()
    world.lose("n4")
    world.save(9)
    world.lose("n2")
    world.save(9)
    world.bring()
    assert len(world.members) >= 4


def test_ranks_that_leave_by_themselves_end_the_run_whatever_satellites_stand_there() -> None:
    """A satellite that waits for its other half is no reason to begin again without end."""
    for joined in ((), ("u1",)):
        world = World(2, 2)
        world.join("900", *joined)
        past, rounds = Ledger(), 0
        while rounds < 50:
            left = tuple(
                RankExit(rank=rank, node=node, reason=ExitReason.left, code=0, at=world.at, step=7)
                for rank, node in enumerate(world.members)
            )
            view = replace(world.view(), exits=left)
            action = decide_after_round(view, Recovery(), past)
            if isinstance(action, EndAttempt):
                break
            assert isinstance(action, NewRound), action
            past = past.after_round(build_round_ended_event(view, action.because, RoundAction.new_round), 1)
            rounds += 1
        assert rounds < 5, joined


def test_run_in_another_layout_orders_what_completes_its_own() -> None:
    """Three of four nodes are in use: one more is enough."""
    world = World(4, 4, fallback=[FallbackLayout(replicate=1, shard="rest")])
    world.lose("n4")
    assert len(world.members) == 3
    world.save()
    assert world.orders == [(1, 1)]
    world.bring()
    assert len(world.members) == 4


def test_excluded_node_gets_another_chance_after_half_a_day() -> None:
    """From its failure on, whether or not others have failed since."""
    world = World(2, 1)
    world.past = world.past.after_round(
        build_round_ended_event(
            world.view(),
            Failure(cause=Cause.unhealthy, message="", node="n2", signature="u"),
            RoundAction.new_round,
        ),
        1,
    )
    world.members = ("n1",)
    policy = world.settings.recovery
    assert list(list_nodes_for_resize(world.view(), policy, world.past)) == ["n1"]
    world.at += timedelta(hours=13)
    assert list(list_nodes_for_resize(world.view(), policy, world.past)) == ["n1", "n2"]


@given(st.data())
def test_run_has_its_size_again_once_its_satellites_have_come(data: st.DataObject) -> None:
    """Whatever is lost and when; and no more nodes are ordered than were lost."""
    whole, replicas = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4))
    world = World(whole * replicas, whole, spare=data.draw(st.integers(0, 1)))
    lost = 0
    for _ in range(data.draw(st.integers(1, 5))):
        standing = [peer.node for peer in world.agents.standing_peers]
        if len(standing) <= whole:
            break
        world.lose(data.draw(st.sampled_from(standing)))
        lost += 1
        world.save(data.draw(st.integers(0, 2)))
        if data.draw(st.booleans()):
            world.bring()
    world.save(3)
    world.bring()
    assert len(world.members) == whole * replicas, (world.members, world.orders)
    assert sum(nodes for _, nodes in world.orders) <= lost + whole - 1, world.orders
