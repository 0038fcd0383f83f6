"""Promises of `find_collective_wait`: which ranks are missing in which collective."""

from __future__ import annotations

import argparse
import copy
import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model.diagnosis.collectives import UNNAMED, CollectiveWait, RankCollectives
from hpckit.model.parallel.layout import format_ranks
from hpckit.planning.recovery.collective_wait import find_collective_wait
from hpckit.planning.recovery.flight_recorder import LATEST, DumpedBy, parse_flight_dumps

NOW = 1_800_000_000.0
WORLD = 4
GROUPS: dict[str, tuple[int, ...]] = {"0": (0, 1, 2, 3), "1": (0, 2), "2": (1, 2, 3)}

Schedule = list[tuple[str, str]]
"""What the ranks of a program do one after the other: group and operation."""


def dump_of(
    rank: int, schedule: Schedule, *, stops_at: int, hangs: bool = True, changed: bool = False
) -> dict[str, Any]:
    """Return the dump of a rank that leaves the schedule before place `stops_at`.

    It waits in the last collective it has entered if it `hangs`. With `changed` that is another
    operation than the schedule's.
    """
    entries: list[dict[str, Any]] = []
    numbers = dict.fromkeys(GROUPS, 0)
    mine = [(at, *one) for at, one in enumerate(schedule) if rank in GROUPS[one[0]]]
    for at, group, operation in mine:
        if at >= stops_at:
            break
        numbers[group] += 1
        entries.append(entry(len(entries), group, operation, numbers[group]))
    if hangs and entries:
        entries[-1] |= {"state": "started", "retired": False, "time_discovered_completed_ns": None}
        if changed:
            entries[-1]["profiling_name"] = "nccl:all_gather"
    return {
        "version": "2.10",
        "rank": rank,
        "pg_config": {
            name: {"name": name, "desc": f"group{name}", "ranks": str(list(ranks))}
            for name, ranks in GROUPS.items()
            if rank in ranks
        },
        "entries": entries,
    }


def entry(record: int, group: str, operation: str, number: int, **other: Any) -> dict[str, Any]:
    """Return a finished collective as torch dumps it."""
    return {
        "record_id": record,
        "pg_id": int(group),
        "process_group": (group, f"group{group}"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": int((NOW - 7) * 1e9),
        "input_sizes": ((1024,),),
        "input_dtypes": ["Float"],
        "output_sizes": ((1024,),),
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": 1,
        "time_discovered_completed_ns": 2,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": [
            {"name": "all_reduce", "filename": "/v/site-packages/torch/d.py", "line": 2},
            {"name": "main", "filename": "/home/a/train.py", "line": 88},
        ],
        **other,
    }


def said(rank: int, dump: Any) -> RankCollectives | None:
    """Return what a rank says."""
    return parse_flight_dumps([dump], DumpedBy(rank=rank, at_s=NOW, node=f"n{rank}"))


def found_in(dumps: dict[int, dict[str, Any]]) -> CollectiveWait | None:
    """Return what is found in these dumps."""
    statements = [one for rank, dump in dumps.items() if (one := said(rank, dump))]
    return find_collective_wait(statements, WORLD)


def of_torch(dumps: dict[int, dict[str, Any]]) -> list[Any]:
    """Return the collectives that torch's own analyser finds, those without all ranks alone."""
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    logging.getLogger("Flight Recorder").setLevel(logging.ERROR)
    given_words = argparse.Namespace(
        verbose=False, just_print_entries=False, allow_incomplete_ranks=False, mismatch_cap=10
    )
    details = {str(rank): copy.deepcopy(dump) for rank, dump in dumps.items()}
    database = builder.build_db(details, given_words, "2.10")
    return [collective for collective in database.collectives if collective.missing_ranks]


SCHEDULE: Schedule = [("0", "all_reduce"), ("1", "broadcast"), ("2", "all_reduce")] * 3


def stopped_at(place: int, culprit: int, schedule: Schedule) -> dict[int, dict[str, Any]]:
    """Return the dumps of ranks that follow a schedule until one of them enters nothing more.

    The others go on until they wait for it, or for one that waits.
    """
    reached = dict.fromkeys(range(WORLD), 0)
    waiting: set[int] = set()
    for at, (group, _) in enumerate(schedule):
        members = [rank for rank in GROUPS[group] if rank not in waiting]
        gone = [rank for rank in members if rank == culprit and at >= place]
        blocked = bool(gone) or len(members) < len(GROUPS[group])
        for rank in members:
            if rank not in gone:
                reached[rank] = at + 1
                if blocked:
                    waiting.add(rank)
    return {
        rank: dump_of(rank, schedule, stops_at=reached[rank], hangs=rank in waiting) for rank in range(WORLD)
    }


def test_missing_rank_and_collective_are_named_in_a_sentence() -> None:
    """Number, group, tensor, who waits for how long, and where."""
    found = found_in(stopped_at(3, 3, SCHEDULE))
    assert found is not None
    assert (found.operation, found.sequence, found.group) == ("all_reduce", 2, "group0")
    assert (found.missing, found.waiting, found.culprit) == ((3,), (0, 1, 2), 3)
    assert found.words == (
        "rank 3 (n3) never entered all_reduce #2 of group group0 (float32[1024]); "
        "ranks 0-2 wait in it for 7.0 s, at train.py:88 in main"
    )


schedules = st.lists(
    st.tuples(st.sampled_from(sorted(GROUPS)), st.sampled_from(["all_reduce", "broadcast"])),
    min_size=1,
    max_size=12,
)


@pytest.mark.training
@settings(max_examples=150, deadline=None)
@given(schedules, st.data())
def test_the_rank_that_stopped_is_the_culprit_and_torch_misses_it_too(
    schedule: Schedule, data: st.DataObject
) -> None:
    """Whatever the groups do: who waits for one that waits itself is no culprit."""
    culprit = data.draw(st.integers(0, WORLD - 1))
    place = data.draw(st.integers(0, len(schedule) - 1))
    dumps = stopped_at(place, culprit, schedule)
    found = found_in(dumps)
    if not any(culprit in GROUPS[group] for group, _ in schedule[place:]):
        assert found is None, "it had nothing more to enter"
        return
    assert found is not None
    assert found.culprit == culprit
    place_of_ours = (found.group.removeprefix("group"), found.sequence)
    same = [
        set(one.missing_ranks)
        for one in of_torch(dumps)
        if (one.group_id, one.collective_seq_id) == place_of_ours
    ]
    assert same == [set(found.missing)]


@given(schedules)
def test_a_program_that_goes_on_waits_for_nobody(schedule: Schedule) -> None:
    """All have entered and left every collective."""
    dumps = {rank: dump_of(rank, schedule, stops_at=len(schedule), hangs=False) for rank in range(WORLD)}
    assert found_in(dumps) is None


def test_all_waiting_in_one_collective_blames_nobody() -> None:
    """A lost message, or a broken link."""
    dumps = {rank: dump_of(rank, SCHEDULE, stops_at=1) for rank in range(WORLD)}
    found = found_in(dumps)
    assert found is not None
    assert (found.missing, found.silent, found.culprit) == ((), (), None)
    assert found.words.startswith("all 4 ranks wait in all_reduce #1 of group group0")
    assert found.words.endswith("none of them is missing")


def test_another_operation_in_its_place_is_told() -> None:
    """A rank that calls all_gather where the others call all_reduce."""
    dumps = {rank: dump_of(rank, SCHEDULE, stops_at=1, changed=rank == 2) for rank in range(WORLD)}
    found = found_in(dumps)
    assert found is not None
    assert (found.other, found.culprit) == ((2,), 2)
    assert found.words.startswith("rank 2 (n2) entered all_gather (float32[1024]) instead of all_reduce #1")


def test_a_rank_that_says_nothing_is_told_apart_from_one_that_is_missing() -> None:
    """Its interpreter may stand still inside the collective."""
    dumps = {rank: dump_of(rank, SCHEDULE, stops_at=1) for rank in (0, 1, 3)}
    found = found_in(dumps)
    assert found is not None
    assert (found.missing, found.silent, found.culprit) == ((), (2,), 2)
    assert "rank 2 has not reported entering all_reduce #1" in found.words


def test_a_rank_that_waits_for_a_message_is_not_the_culprit() -> None:
    """Rank 1 waits in recv for rank 2, and the others wait for rank 1."""
    dumps = {rank: dump_of(rank, SCHEDULE, stops_at=4) for rank in (0, 3)}
    waits = dump_of(1, SCHEDULE, stops_at=3, hangs=False)
    message = {"is_p2p": True, "p2p_seq_id": 1, "state": "started", "retired": False}
    unfinished = {"time_discovered_completed_ns": None, "profiling_name": "nccl:recv 1<-2"}
    waits["entries"].append(entry(9, "0", "recv", 1) | message | unfinished)
    dumps |= {1: waits, 2: dump_of(2, SCHEDULE, stops_at=3, hangs=False)}
    found = found_in(dumps)
    assert found is not None
    assert (found.missing, found.culprit) == ((1, 2), 2)
    assert found.words.endswith("rank 1 waits in recv with rank 2")


def test_messages_alone_name_the_other_side() -> None:
    """A pipeline has no collectives."""
    message = {"is_p2p": True, "p2p_seq_id": 3, "state": "started", "retired": False}
    open_one = {"time_discovered_completed_ns": None, "profiling_name": "nccl:recv 1<-0"}
    dumps = {rank: dump_of(rank, SCHEDULE, stops_at=1, hangs=False) for rank in range(WORLD)}
    dumps[1]["entries"].append(entry(9, "0", "recv", 1) | message | open_one)
    found = found_in(dumps)
    assert found is not None
    assert (found.waiting, found.culprit) == ((1,), 0)
    assert found.words.startswith("rank 1 (n1) waits in recv with rank 0 for 7.0 s")


def test_what_is_kept_of_a_rank_is_small() -> None:
    """Thousands of entries fit into a message."""
    dump = dump_of(0, [("0", "all_reduce")] * 2000, stops_at=2000)
    found = said(0, dump)
    assert found is not None
    assert len(found.entries) == LATEST
    assert found.groups[0].entered == 2000


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.data())
def test_wrong_content_is_left_out(data: st.DataObject) -> None:
    """Any value in the place of any other raises nothing, and the rest still counts."""
    dump = dump_of(0, SCHEDULE, stops_at=4)
    one = data.draw(st.sampled_from(dump["entries"]))
    for name in data.draw(st.lists(st.sampled_from(sorted(one)), min_size=1)):
        one[name] = data.draw(hostile)
    if data.draw(st.booleans()):
        dump["pg_config"] = data.draw(hostile)
    found = said(0, dump)
    assert found is not None
    find_collective_wait([found], WORLD)
    said(0, data.draw(hostile))


def every_eighth(world: int, absent: int) -> list[RankCollectives]:
    """Return what ranks in groups of every eighth one say, if one rank stays out of the tenth."""
    told = []
    for rank in range(world):
        group = rank % 8
        entries = [
            {
                "profiling_name": "nccl:all_reduce",
                "collective_seq_id": number,
                "is_p2p": False,
                "process_group": [f"dp{group}", "undefined"],
                "state": "completed" if number < 10 or group else "scheduled",
                "time_created_ns": 10**9 * number,
            }
            for number in range(9, 10 if rank == absent else 11)
        ]
        groups = {f"dp{group}": range(group, world, 8)}
        by = DumpedBy(rank=rank, at_s=100.0, node=f"n{rank // 8}", groups=groups)
        one = parse_flight_dumps([{"version": "2.5", "pg_config": {}, "entries": entries}], by)
        assert one is not None
        told.append(one)
    return told


@pytest.mark.parametrize("world", [64, 4096])
def test_flight_recorder_blames_one_rank_of_any_world(world: int) -> None:
    """Members of large groups are known as well as those of small ones."""
    found = find_collective_wait(every_eighth(world, absent=8), world)
    assert found is not None
    assert (found.missing, found.culprit) == ((8,), 8)
    assert "rank 8 " in found.words
    assert len(found.words) < 300


def test_members_that_no_message_holds_blame_nobody_outside() -> None:
    """A group without a pattern is what those who were in it make it."""
    told = every_eighth(64, absent=8)
    unnamed = [replace(one, groups=tuple(replace(at, ranks=UNNAMED) for at in one.groups)) for one in told]
    found = find_collective_wait(unnamed, 64)
    assert found is not None
    assert (found.missing, found.culprit) == ((8,), 8)


def test_message_counts_ranks_that_it_does_not_name() -> None:
    """Of very many ranks the first ones are named; a few, or neighbours, are named whole."""
    found = find_collective_wait(every_eighth(4096, absent=8), 4096)
    assert found is not None
    assert "ranks 0, 16, 24, 32, 40, 48, 56, 64, … (511 in all) wait in it" in found.words
    assert len(found.waiting) == 511
    assert format_ranks(range(4096), None) == "ranks 0-4095"
    assert format_ranks(range(0, 64, 8), None) == "ranks 0, 8, 16, 24, 32, 40, 48, 56"
