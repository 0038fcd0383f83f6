"""Promises of what the next attempt asks for after memory or time ran out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import pytest
from asked import asking
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.cluster.site import NodeGroup, Partition, Site
from hpckit.model.events import SettingsChanged
from hpckit.model.failure import Cause, RankExit
from hpckit.model.launch import LaunchConfig, Recovery, Resources
from hpckit.model.parallel.settings import Parallel
from hpckit.model.states import RunState
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.growth import GROWING, find_room_to_grow, grow_resources
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import (
    EndAttempt,
    NewRound,
    RoundView,
    StopNotice,
    build_round_event_for_action,
)
from hpckit.values import replace

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIRST = Resources(mem_gb=16, timeout_min=60)
POLICY = Recovery(
    requeue=True,
    grow_on_oom=1.5,
    grow_on_timeout=2,
    restarts={"host_oom": 2, "time_limit": 3, "preempted": 9},
)
SETTINGS = LaunchConfig(resources=FIRST, recovery=POLICY)
CAN = dict.fromkeys(GROWING, "")


def grown(cause: Cause, settings: LaunchConfig, *changes: SettingsChanged, room: Any = None) -> Any:
    """Return the settings after this cause, or why there are none."""
    return grow_resources(cause, settings, FIRST, changes, room or find_room_to_grow(asking(), Site()))


def change(words: tuple[str, ...], cause: Cause | None = None, **resources: Any) -> SettingsChanged:
    """Return the record of a resume with these words, or of a growth."""
    new = replace(FIRST, **resources)
    return SettingsChanged(at=NOON, runs=(0,), words=words, parallel=Parallel(), resources=new, cause=cause)


@given(
    cause=st.sampled_from(list(GROWING)),
    factor=st.floats(1.01, 10),
    most=st.floats(1.01, 20),
    first=st.integers(1, 5000),
    room=st.none() | st.floats(0.5, 1e5),
)
def test_growth_ends_at_its_bounds_and_says_which(
    cause: Cause, factor: float, most: float, first: int, room: float | None
) -> None:
    """Each step is larger than the one before, none beyond a bound, and the last one names it."""
    key = GROWING[cause]
    policy = Recovery(grow_on_oom=factor, grow_on_timeout=factor, grow_max=most)
    asked = Resources(mem_gb=first, timeout_min=first)
    present = LaunchConfig(resources=asked, recovery=policy)
    bound = {cause: (inf if room is None else room, "partition batch")}
    for _ in range(1000):
        after = grow_resources(cause, present, asked, (), bound)
        if isinstance(after, str):
            assert after.endswith(("recovery.grow_max=" + f"{most:g} allows", "partition batch allows"))
            return
        now, then = getattr(present.resources, key), getattr(after.resources, key)
        assert now < then <= min(first * most, room or first * most) + 0.001
        assert then <= now * factor + 1
        assert replace(after, resources=replace(after.resources, **{key: now})) == present
        present = after
    pytest.fail("it grows without end")


def test_growth_is_bounded_by_what_the_user_asked_for_last() -> None:
    """A resume with more memory begins anew; a growth, and a resume with other words, do not."""
    now = replace(SETTINGS, resources=replace(FIRST, mem_gb=64))
    mine = change(("resources.mem_gb=64",), mem_gb=64)
    other = change(("resources.qos=long",), mem_gb=64)
    by_us = change(("resources.mem_gb=64",), Cause.host_oom, mem_gb=64)
    assert grown(Cause.host_oom, now) == "resources.mem_gb=64 is all that recovery.grow_max=4 allows"
    assert grown(Cause.host_oom, now, other, by_us) == grown(Cause.host_oom, now)
    assert grown(Cause.host_oom, now, mine, other).resources.mem_gb == 96


def test_room_is_what_enough_nodes_of_the_partition_have() -> None:
    """Memory of as many nodes as the job asks for that fit otherwise; the shortest of its limits."""
    nodes = tuple(
        NodeGroup(partition="batch", nodes=count, cpus=cpus, memory_mb=gigabytes * 1024, gres={}, state=state)
        for count, cpus, gigabytes, state in (
            (1, 8, 512, "idle"),
            (1, 8, 256, "down"),
            (1, 2, 999, "idle"),
            (2, 8, 128, "mixed"),
        )
    )
    place = Partition(name="batch", default=True, max_time=timedelta(hours=2))
    site = Site(partitions={"batch": place}, nodes=nodes)
    asked = asking(nodes=2, tasks_per_node=4, mem_gb=64.0)
    assert find_room_to_grow(asked, site) == {
        Cause.host_oom: (128.0, "partition batch"),
        Cause.time_limit: (120.0, "partition batch"),
    }
    assert {most for most, _ in find_room_to_grow(asked, Site()).values()} == {inf}
    free = replace(site, partitions={"batch": place, "long": Partition(name="long")})
    assert find_room_to_grow(replace(asked, partition="batch,long"), free)[Cause.time_limit][0] == inf


def oom(**about: Any) -> RoundView:
    """Return a round that the kernel ended for its memory, on a node that still stands."""
    dead = RankExit(rank=0, node="n1", code=None, signal="SIGKILL", oom="memory.events", reason="killed")  # type: ignore[arg-type]
    given: dict[str, Any] = {"members": ("n1",), "standing": ("n1",), "requeues": True, "growth": CAN}
    return RoundView(round=0, at=NOON, exits=(dead,), **(given | about))


def test_a_run_out_of_memory_asks_for_more_instead_of_a_new_round() -> None:
    """Where it cannot have more it begins again in its allocation, as without growth."""
    more = decide_after_round(oom(), POLICY, Ledger())
    assert isinstance(more, EndAttempt)
    assert (more.again, more.grow, more.state) == (True, Cause.host_oom, RunState.interrupted)
    spent = dict.fromkeys(GROWING, "64 GB is all")
    for cannot in (oom(growth={}), oom(growth=spent), oom(requeues=False)):
        assert isinstance(decide_after_round(cannot, POLICY, Ledger()), NewRound)


@given(steps=st.lists(st.integers(0, 20), min_size=1, max_size=40), grows=st.booleans())
def test_growth_never_gives_a_run_more_attempts_than_its_budget(steps: list[int], *, grows: bool) -> None:
    """Whatever grows, the run ends after as many failures without progress as without growth."""
    past, other = Ledger(), Ledger()
    for number, step in enumerate(steps, 1):
        seen = oom(step=step, attempt=number, growth=CAN if grows else {})
        plain = oom(step=step, attempt=number, growth={})
        first, second = decide_after_round(seen, POLICY, past), decide_after_round(plain, POLICY, other)
        ends = [isinstance(one, EndAttempt) and not one.again for one in (first, second)]
        assert ends[0] == ends[1]
        if ends[0]:
            return
        failure = first.failure if isinstance(first, EndAttempt) else first.because
        assert failure is not None
        assert failure.cause is Cause.host_oom
        past = past.after_round(build_round_event_for_action(seen, first), number)
        other = other.after_round(build_round_event_for_action(plain, second), number)


@pytest.mark.parametrize("room", [CAN, dict.fromkeys(GROWING, "120 is all that partition batch allows")])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("further", [True, False])
def test_time_grows_only_for_a_run_that_saved_no_further_step(
    room: dict[Cause, str], *, saved: bool, further: bool
) -> None:
    """One that got further continues in the same time; one that saves nothing may end for want of it."""
    past = Ledger().advance_to_step(10)
    notice = StopNotice(signal="TIME", cause=Cause.time_limit)
    left = RankExit(rank=0, node="n1", code=0, reason="left")  # type: ignore[arg-type]
    seen = replace(
        oom(growth=room),
        exits=(left,),
        notice=notice,
        saved=saved,
        cut_short=True,
        step=11 if further else 10,
    )
    end = decide_after_round(seen, POLICY, past)
    assert isinstance(end, EndAttempt)
    grows = room == CAN and not (saved and further)
    assert (end.grow is Cause.time_limit) == grows
    assert end.again == (grows or saved)
    if not end.again:
        assert end.failure is not None
        assert end.failure.message.endswith("120 is all that partition batch allows")
