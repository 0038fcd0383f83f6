"""Promises of rounds of whole replicas: which nodes a run goes on with, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import LaunchConfig, Recovery
from hpckit.model.parallel.settings import Parallel
from hpckit.model.states import RoundAction
from hpckit.planning.layout import count_run_replica_nodes
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.loss import build_loss_before_start_failure
from hpckit.planning.recovery.node_choice import (
    RoundSizes,
    choose_first_round_nodes,
    choose_nodes_in_whole_replicas,
)
from hpckit.planning.recovery.round_view import EndAttempt, NewRound, RoundView, build_round_ended_event

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Recovery(
    restarts={"node_lost": 10_000, "hang": 10_000}, max_identical_failures=10_000, node_failures=2
)
"""Budgets that no test spends: what is tested is the choice of nodes."""


def blocks(nodes: Sequence[str], replica_nodes: int) -> list[tuple[str, ...]]:
    """Return the nodes of each replica."""
    return [tuple(nodes[at : at + replica_nodes]) for at in range(0, len(nodes), replica_nodes)]


def test_spare_takes_the_very_place_of_a_lost_node() -> None:
    """With a spare no other node moves: every rank but those of the lost node is where it was."""
    members = ("a", "b", "c", "d")
    assert choose_nodes_in_whole_replicas(members, ("a", "b", "d", "s"), 4, replica_nodes=2) == (
        "a",
        "b",
        "s",
        "d",
    )
    assert choose_nodes_in_whole_replicas(members, ("b", "d", "s", "t"), 4, replica_nodes=2) == (
        "s",
        "b",
        "t",
        "d",
    )


def test_replica_that_lost_a_node_is_dropped_without_a_spare() -> None:
    """The other replicas keep their nodes, wherever the lost one was."""
    members = ("a", "b", "c", "d", "e", "f")
    assert choose_nodes_in_whole_replicas(members, ("a", "b", "c", "e", "f"), 6, replica_nodes=2) == (
        "a",
        "b",
        "e",
        "f",
    )
    assert choose_nodes_in_whole_replicas(members, ("b", "c", "d", "e", "f"), 6, replica_nodes=2) == (
        "c",
        "d",
        "e",
        "f",
    )


def test_survivors_of_a_dropped_replica_are_spares_for_the_next_losses() -> None:
    """Of a replica of four nodes that lost one, three are left: three losses cost no replica."""
    members = tuple("abcdefgh")
    standing = [node for node in members if node != "h"]
    now = choose_nodes_in_whole_replicas(members, standing, 8, replica_nodes=4)
    assert now == tuple("abcd")
    for lost, expected in (("b", "aecd"), ("d", "aecf"), ("a", "gecf")):
        standing.remove(lost)
        now = choose_nodes_in_whole_replicas(now, standing, 8, replica_nodes=4)
        assert now == tuple(expected)
    standing.remove("g")
    assert choose_nodes_in_whole_replicas(now, standing, 8, replica_nodes=4) == ()


def test_two_broken_replicas_become_one_whole() -> None:
    """A survivor of one takes the lost node's place in the other; the whole one does not move."""
    members = tuple("abcdef")
    assert choose_nodes_in_whole_replicas(members, tuple("acef"), 6, replica_nodes=2) == ("a", "c", "e", "f")


def test_replica_that_lost_fewer_nodes_is_kept() -> None:
    """What moves least is kept, so that the least has to be loaded anew."""
    members = tuple("abcdef")
    assert choose_nodes_in_whole_replicas(members, tuple("adef"), 6, replica_nodes=3) == ("d", "e", "f")
    assert choose_nodes_in_whole_replicas(members, tuple("abf"), 6, replica_nodes=3) == ("a", "b", "f")


def test_draining_node_is_left_for_the_survivor_of_a_dropped_replica() -> None:
    """A node that is being drained is taken only if there are too few others."""
    members = tuple("abcd")
    assert choose_nodes_in_whole_replicas(members, tuple("abc"), 4, {"a"}, replica_nodes=2) == ("c", "b")
    assert choose_nodes_in_whole_replicas(members, tuple("ab"), 4, {"a"}, replica_nodes=2) == ("a", "b")


def test_run_grows_again_by_whole_replicas() -> None:
    """As many spares as a replica needs become one; fewer stay spares."""
    assert choose_nodes_in_whole_replicas(tuple("ab"), tuple("abcd"), 4, replica_nodes=2) == tuple("abcd")
    assert choose_nodes_in_whole_replicas(tuple("ab"), tuple("abc"), 4, replica_nodes=2) == tuple("ab")


def test_first_round_is_whole_replicas() -> None:
    """Even where fewer nodes came than were asked for."""
    assert choose_first_round_nodes(
        tuple("abcde"), Ledger(), POLICY, RoundSizes(wanted=6, replica_nodes=2)
    ) == tuple("abcd")


def test_round_whose_nodes_are_gone_names_them() -> None:
    """Nodes that are lost between the decision and the start are to blame for it."""
    failure = build_loss_before_start_failure(("a", "b"), {"a"})
    assert (failure.cause, failure.node) == (Cause.node_lost, "b")
    assert build_loss_before_start_failure(("a", "b"), {}).node is None


def test_nodes_of_a_replica_follow_the_layout() -> None:
    """Sharding over all ranks makes one replica of the run, sharding over a node one of each."""
    base = LaunchConfig(name="x")
    two = {"nodes": 2, "tasks_per_node": 2}
    asked = replaced(base, two)
    assert count_run_replica_nodes(replaced(asked, {}, Parallel(replicate=1, shard="rest"))) == 2
    assert count_run_replica_nodes(replaced(asked, {}, Parallel(shard="node"))) == 1
    assert count_run_replica_nodes(asked) == 1


def replaced(
    settings_: LaunchConfig, resources: Mapping[str, Any], parallel: Parallel | None = None
) -> LaunchConfig:
    """Return settings with other resources, and another layout."""
    return replace(
        settings_,
        resources=replace(settings_.resources, **dict(resources)),
        parallel=parallel or settings_.parallel,
    )


@st.composite
def choices(draw: st.DrawFn) -> tuple[tuple[str, ...], tuple[str, ...], int, int, set[str]]:
    """Draw members, available nodes, the nodes of a replica, those wanted, and the unwelcome."""
    size, count = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    names = [f"n{number}" for number in range(size * count + draw(st.integers(0, 5)))]
    members = draw(st.permutations(names))[: size * draw(st.integers(0, count))]
    good = draw(st.lists(st.sampled_from(names), unique=True))
    unwelcome = draw(st.sets(st.sampled_from(names)))
    return tuple(members), tuple(sorted(good)), size, size * count, unwelcome


@given(choices())
@settings(max_examples=500)
def test_choice_is_the_largest_and_disturbs_the_least(
    drawn: tuple[tuple[str, ...], tuple[str, ...], int, int, set[str]],
) -> None:
    """As many whole replicas as there can be; those that lost nothing keep nodes and order."""
    members, good, size, wanted, unwelcome = drawn
    chosen = choose_nodes_in_whole_replicas(members, good, wanted, unwelcome, replica_nodes=size)
    assert len(chosen) == min(wanted, len(good)) // size * size
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(good)
    now, before = blocks(chosen, size), blocks(members, size)
    welcome = set(good) - unwelcome
    whole = [block for block in before if set(block) <= welcome]
    assert [block for block in now if block in whole] == whole[: len(now)]
    if set(chosen) & unwelcome:
        assert set(chosen) >= welcome, "no unwelcome node while others are free"


class ReplicaMachine(RuleBasedStateMachine):
    """A run of several replicas that loses nodes, one after the other, by the real decisions."""

    @initialize(
        size=st.integers(1, 4), replicas=st.integers(1, 4), fewest=st.integers(1, 4), spares=st.integers(0, 4)
    )
    def begin(self, size: int, replicas: int, fewest: int, spares: int) -> None:
        """Start the first round on nodes of two ranks each."""
        self.size = size
        self.wanted = size * replicas
        self.fewest = size * min(fewest, replicas)
        self.spares, self.attempt = spares, 0
        self.past, self.at = Ledger(), NOON
        self.blamed: dict[str, int] = {}
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Get an allocation of nodes that the run has not had before."""
        self.attempt, self.ended = self.attempt + 1, False
        count = self.wanted + self.spares
        self.standing = tuple(f"n{self.attempt}-{number}" for number in range(count))
        self.members = choose_first_round_nodes(
            self.standing, self.past, POLICY, RoundSizes(wanted=self.wanted, replica_nodes=self.size)
        )
        assert self.members == self.standing[: self.wanted]

    @precondition(lambda self: self.ended)
    @rule()
    def start_again(self) -> None:
        """Start a new attempt."""
        self.begin_attempt()

    @property
    def bad(self) -> set[str]:
        """Nodes that hung as often as the policy allows."""
        return {node for node, count in self.blamed.items() if count >= POLICY.node_failures}

    @precondition(lambda self: not self.ended)
    @rule(data=st.data())
    def lose_nodes(self, data: st.DataObject) -> None:
        """Lose one to three members, and perhaps a spare with them."""
        count = min(3, len(self.members))
        lost = data.draw(st.lists(st.sampled_from(self.members), min_size=1, max_size=count))
        lost += data.draw(st.lists(st.sampled_from(self.standing), max_size=1))
        gone = sorted(set(lost))
        self.standing = tuple(node for node in self.standing if node not in gone)
        named = ", ".join(node for node in self.members if node in gone)
        failure = Failure(cause=Cause.node_lost, message="", node=named, signature=f"node_lost {named}")
        hit = [place for place, node in enumerate(self.members) if node in gone]
        self.end_round(failure, {place // self.size for place in hit})

    @precondition(lambda self: not self.ended)
    @rule(data=st.data())
    def hang(self, data: st.DataObject) -> None:
        """Let a node hang: it is left out when it has done so twice, although it stands."""
        node = data.draw(st.sampled_from(self.members))
        self.blamed[node] = self.blamed.get(node, 0) + 1
        failure = Failure(cause=Cause.hang, message="", node=node, signature=f"hang {node}")
        hit = {self.members.index(one) // self.size for one in self.bad & set(self.members)}
        self.end_round(failure, hit)

    def end_round(self, failure: Failure, hit: set[int]) -> None:
        """Decide, and check what must always hold of the next round."""
        self.at += timedelta(minutes=1)
        view = RoundView(
            round=0,
            at=self.at,
            exits=(),
            failure=failure,
            members=self.members,
            standing=self.standing,
            wanted=self.wanted,
            fewest=self.fewest,
            replica_nodes=self.size,
            requeues=True,
        )
        action = decide_after_round(view, POLICY, self.past)
        self.past = self.past.after_round(build_round_ended_event(view, failure, RoundAction.end), 1)
        good = set(self.standing) - self.bad
        if isinstance(action, EndAttempt):
            assert len(good) < self.fewest, "there were enough good nodes here"
            self.ended = True
            return
        self.check(action, good, hit)
        self.members = action.nodes

    def check(self, action: NewRound, good: set[str], hit: set[int]) -> None:
        """Check the nodes of a new round."""
        nodes = action.nodes
        assert set(nodes) <= good
        assert len(nodes) % self.size == 0
        assert self.fewest <= len(nodes) <= self.wanted
        assert len(nodes) == min(len(good), self.wanted) // self.size * self.size
        before = blocks(self.members, self.size)
        whole = [block for place, block in enumerate(before) if place not in hit]
        assert [block for block in blocks(nodes, self.size) if block in whole] == whole


ReplicaMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=20, deadline=None)
TestReplicas = ReplicaMachine.TestCase
