"""Promises of runs that grow and shrink: which nodes they go on with, and how many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.failure import Cause, ExitReason, Failure, RankExit
from hpckit.model.launch import LaunchConfig, Recovery, Resources
from hpckit.model.parallel.settings import Parallel
from hpckit.model.states import RoundAction
from hpckit.planning.recovery.boundary import decide_on_resize
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import EndAttempt, NewRound, RoundView, Stay, build_round_ended_event
from hpckit.planning.recovery.run_size import (
    RunSize,
    build_run_size,
    count_replicas_to_order,
    find_min_replicas,
    is_growth_worthwhile,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Recovery(restarts={"node_lost": 5})


def view(members: str, standing: str, wanted: int, **more: object) -> RoundView:
    """Return a round of replicas of two nodes, each named by a letter."""
    known = RoundView(
        round=1,
        at=NOON,
        exits=(),
        step=7,
        saved=True,
        members=tuple(members),
        standing=tuple(standing),
        wanted=wanted,
        fewest=2,
        replica_nodes=2,
        resizing=True,
    )
    return replace(known, **more)  # type: ignore[arg-type]


def blocks(nodes: Sequence[str], size: int = 2) -> list[tuple[str, ...]]:
    """Return the nodes of each replica."""
    return [tuple(nodes[at : at + size]) for at in range(0, len(nodes), size)]


def test_run_grows_by_the_nodes_of_a_satellite() -> None:
    """Its own replicas stay where they are; the new one comes last."""
    action = decide_on_resize(view("ab", "abst", 4), POLICY, Ledger())
    assert isinstance(action, NewRound)
    assert action.nodes == tuple("abst")
    assert action.because.cause is Cause.resized
    assert action.because.message == "from 1 to 2 replicas"


def test_half_a_replica_is_no_reason_to_leave() -> None:
    """One node of two stands as a spare until the other one comes."""
    assert isinstance(decide_on_resize(view("ab", "abs", 4), POLICY, Ledger()), Stay)


def test_run_without_a_saved_state_waits_before_it_grows() -> None:
    """Leaving would lose all of its steps."""
    action = decide_on_resize(view("ab", "abst", 4, saved=False), POLICY, Ledger())
    assert isinstance(action, Stay)
    assert "nothing has been saved yet" in action.because


def test_run_continues_without_the_nodes_that_leave() -> None:
    """Saved or not: they take their ranks with them; a spare takes a place if there is one."""
    action = decide_on_resize(view("abst", "ab", 2, saved=False), POLICY, Ledger())
    assert isinstance(action, NewRound)
    assert action.nodes == tuple("ab")
    assert action.because.message == "from 2 to 1 replica: s, t left with their satellite job"
    moved = decide_on_resize(view("as", "ab", 2), POLICY, Ledger())
    assert isinstance(moved, NewRound)
    assert moved.nodes == tuple("ab")


def test_shrinking_keeps_whole_replicas_in_their_places() -> None:
    """The last replicas go, also where a node is not where the allocation's order has it."""
    action = decide_on_resize(view("adcb", "abcd", 2), POLICY, Ledger())
    assert isinstance(action, NewRound)
    assert action.nodes == ("a", "d")


def test_growing_leaves_bad_nodes_out() -> None:
    """A node that failed, is drained or is slow brings no replica."""
    failure = Failure(cause=Cause.node_lost, message="", node="s", signature="x")
    past = Ledger().after_round(
        build_round_ended_event(view("ab", "ab", 2), failure, RoundAction.new_round), 1
    )
    assert isinstance(decide_on_resize(view("ab", "abst", 4), POLICY, past), Stay)
    draining = view("ab", "abst", 4, draining={"t": "maintenance"})
    assert isinstance(decide_on_resize(draining, POLICY, Ledger()), Stay)
    slow = view("ab", "abst", 4, slow={"t": "half as fast"})
    assert isinstance(decide_on_resize(slow, POLICY, Ledger()), Stay)


def left(rank: int) -> RankExit:
    """Return the exit of a rank that saved and left."""
    return RankExit(rank=rank, node="n", reason=ExitReason.left, code=0, at=NOON, step=7)


def test_ranks_that_a_satellite_took_along_are_no_failure() -> None:
    """Slurm tells its ranks before the supervisor can: they leave unasked, and are not blamed."""
    ended = view("abst", "ab", 2, exits=tuple(map(left, range(4))))
    action = decide_after_round(ended, POLICY, Ledger())
    assert isinstance(action, NewRound)
    assert (action.because.cause, action.nodes) == (Cause.resized, tuple("ab"))
    unasked = decide_after_round(replace(ended, resizing=False, standing=tuple("abst")), POLICY, Ledger())
    assert isinstance(unasked, EndAttempt)
    assert unasked.failure is not None
    assert unasked.failure.cause is Cause.left


def raised(view_: RoundView) -> RoundView:
    """Return a round whose rank 0 raised."""
    failed = RankExit(
        rank=0,
        node="a",
        reason=ExitReason.raised,
        code=1,
        at=NOON,
        exception="ValueError",
        message="a batch of 3 rows for 4 data ranks",
    )
    return replace(view_, exits=(failed,), resizing=False, step=None)


def test_growth_that_fails_at_once_is_undone() -> None:
    """Nobody's run ends because it got more nodes than its batch has rows."""
    ended = raised(view("abst", "abst", 4, grown_from=("a", "b")))
    action = decide_after_round(ended, POLICY, Ledger())
    assert isinstance(action, NewRound)
    assert (action.nodes, action.undone, action.because.cause) == (("a", "b"), True, Cause.resized)
    assert action.because.message.endswith("4 data ranks; back from 2 to 1 replica")
    for other in (
        replace(ended, grown_from=()),
        replace(ended, first_step=3),
        replace(ended, standing=tuple("bst")),
    ):
        end = decide_after_round(other, POLICY, Ledger())
        assert isinstance(end, EndAttempt), "the code's own failure"
        assert end.failure is not None
        assert end.failure.cause is Cause.exception


NODES = st.permutations("abcdefghij")


@given(
    nodes=NODES,
    members=st.integers(1, 4),
    size=st.integers(1, 2),
    wanted=st.integers(1, 5),
    gone=st.sets(st.sampled_from("abcdefghij")),
    drained=st.sets(st.sampled_from("abcdefghij")),
)
def test_resizing_never_breaks_a_replica(
    nodes: list[str], members: int, size: int, wanted: int, gone: set[str], drained: set[str]
) -> None:
    """Whole replicas, at least the fewest, no bad new node; whole ones keep nodes and order."""
    now = tuple(nodes[: members * size])
    standing = tuple(sorted(node for node in nodes if node not in gone))
    seen = replace(
        view("", "", wanted * size),
        members=now,
        standing=standing,
        replica_nodes=size,
        fewest=size,
        draining=dict.fromkeys(drained, ""),
    )
    action = decide_on_resize(seen, POLICY, Ledger())
    if isinstance(action, Stay):
        return
    after = action.nodes
    assert len(after) % size == 0
    assert size <= len(after) <= wanted * size
    assert len(set(after)) == len(after)
    assert {*after} <= {*standing}
    assert not {*after} & drained - {*now}
    whole = [block for block in blocks(now, size) if not {*block} & (gone | drained)]
    kept = [block for block in blocks(after, size) if block in whole]
    assert kept == [block for block in whole if block in kept]
    assert len(kept) == min(len(whole), len(after) // size)


@given(
    configured=st.integers(1, 6),
    most=st.none() | st.integers(1, 8),
    by=st.integers(1, 4),
    to=st.integers(1, 6),
    satellites=st.integers(0, 6),
    standing=st.integers(0, 20),
)
def test_size_follows_the_user(
    configured: int, most: int | None, by: int, to: int, satellites: int, standing: int
) -> None:
    """Never beyond the layout or the user's bound; growing takes no more than stands ready."""
    size = RunSize(configured=configured, replica_nodes=2, most=most)
    assert size.count_wanted_replicas(satellites) <= (configured + satellites if most is None else most)
    small = size.with_bound(to)
    assert small.count_wanted_replicas(satellites) == min(to, size.count_wanted_replicas(satellites))
    assert small.with_raised_bound(by).count_wanted_replicas(satellites) >= small.count_wanted_replicas(
        satellites
    )
    ready = small.count_replicas_held_by_bound(by, standing, satellites)
    assert 0 <= ready <= by
    if ready:
        assert (to + ready) * 2 <= standing
    assert size.count_replicas_held_by_bound(by, standing, satellites) == 0


@given(
    before=st.integers(1, 50),
    more=st.integers(1, 50),
    remaining=st.integers(0, 10**6),
    restart=st.integers(0, 10**5),
)
def test_growing_is_worth_three_restarts(before: int, more: int, remaining: int, restart: int) -> None:
    """The longer a run has to go, the sooner; the costlier the restart, the later."""
    args = (timedelta(seconds=remaining), timedelta(seconds=restart))
    worth = is_growth_worthwhile(before, before + more, *args)
    longer = is_growth_worthwhile(before, before + more, 2 * args[0] + timedelta(seconds=1), args[1])
    costlier = is_growth_worthwhile(before, before + more, args[0], args[1] + args[0])
    assert longer or not worth
    assert not costlier
    assert not is_growth_worthwhile(before, before, *args)


@pytest.mark.parametrize(
    ("parallel", "most"),
    [(Parallel(replicate="rest", shard=2), None), (Parallel(replicate=2, shard="rest"), 2)],
)
def test_layout_bounds_the_replicas(parallel: Parallel, most: int | None) -> None:
    """A number of replicas is a bound; `rest` is none."""
    settings = LaunchConfig(name="x", resources=Resources(nodes=4), parallel=parallel)
    size = build_run_size(settings)
    assert (size.configured, size.replica_nodes, size.most) == (2, 2, most)
    assert size.explain_no_growth(1, 1) is None
    assert (size.explain_no_growth(1, 2) is None) is (most is None)
    assert find_min_replicas(settings) == 1
    bounded = replace(settings, resources=Resources(nodes=4, min_nodes=4))
    assert find_min_replicas(bounded) == 2
    assert size.explain_no_shrink(1, 2, 2) == "resources.min_nodes is 2 replicas, and 1 would be fewer"
    assert size.explain_no_shrink(2, 2, 1) == "it has 2 replicas: name a smaller number"
    assert "no whole replica (parallel.fallback)" in str(size.explain_no_shrink(1, 0, 1))


@given(configured=st.integers(1, 6), changes=st.lists(st.integers(0, 9), max_size=12))
def test_lost_replica_is_ordered_once(configured: int, changes: list[int]) -> None:
    """However often replicas come and go: never more orders than the most that were missing."""
    size = RunSize(configured=configured, replica_nodes=1)
    ordered, most = 0, 0
    for held in changes:
        missing = max(0, configured - held)
        most = max(most, missing)
        ordered += count_replicas_to_order(size, held, ordered)
        assert missing <= ordered
    assert ordered == most


def test_shrunk_run_orders_nothing() -> None:
    """What a user took away is not lost."""
    assert count_replicas_to_order(RunSize(configured=4, replica_nodes=1, bound=2), 2, 0) == 0


def test_run_in_another_layout_returns_to_its_own_when_nodes_come() -> None:
    """Between the two, sizes are told in nodes; undone growth leaves it where it was."""
    seen = view("abc", "abcd", 4, replica_nodes=4, fallback_nodes=(3, 2))
    action = decide_on_resize(seen, POLICY, Ledger())
    assert isinstance(action, NewRound)
    assert action.nodes == ("a", "b", "c", "d")
    assert action.because.message == "from 3 to 4 nodes"
    undone = decide_on_resize(replace(seen, wanted=0), POLICY, Ledger())
    assert isinstance(undone, Stay)


def test_lost_node_of_the_only_replica_leads_to_another_layout() -> None:
    """Without one that is listed, the run asks for a new attempt."""
    lost = Failure(cause=Cause.node_lost, message="lost d", node="d", signature="node_lost d")
    seen = view("abcd", "abc", 4, replica_nodes=4, failure=lost, resizing=False, requeues=True)
    action = decide_after_round(replace(seen, fallback_nodes=(3, 2)), POLICY, Ledger())
    assert isinstance(action, NewRound)
    assert action.nodes == ("a", "b", "c")
    without = decide_after_round(replace(seen, fewest=4), POLICY, Ledger())
    assert isinstance(without, EndAttempt)
    assert without.again
