"""Requests for profiles, as the supervisor answers them: once each, one at a time, to the end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpckit.features.profiling.operations import read_latest_profile_answer
from hpckit.model import messages
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.model.profile import ProfileAnswer, ProfileRequest, RankProfile, planned_profile_id
from hpckit.model.settings import Observe, Profile
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import append_json_lines
from hpckit.runtime.mailbox import profile_mailbox
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.profiles import Profiles

AT = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "20260101T000000Z-ab12"
REQUEST = ProfileRequest(id=NAME, at=AT, host="here", steps=3, ranks=(0, 2))


@dataclass
class FourRanks:
    """A round of four ranks."""

    number: int = 5
    world_size: int = 4
    asked_to_leave: bool = False
    is_watching: bool = True
    step: int | None = 9
    exits: set[int] = field(default_factory=set)
    orders: list[messages.StartProfile] = field(default_factory=list)

    settings = LaunchConfig(observe=Observe(profile=Profile(at_step=5, ranks=[1, 0, 9])))

    @property
    def ranks(self) -> range:
        """The ranks."""
        return range(self.world_size)

    @property
    def state(self) -> FourRanks:
        """What is known of it."""
        return self

    async def broadcast_message(self, order: messages.StartProfile) -> None:
        """Keep the order."""
        self.orders.append(order)


@dataclass
class Desk:
    """A supervisor's side, and the files that a verb sees."""

    paths: AttemptPaths
    round: FourRanks
    profiles: Profiles
    answered: int = 0

    async def ask(self, request: ProfileRequest) -> ProfileAnswer:
        """Ask as a verb does; return what is answered first."""
        latest = append_json_lines(self.paths.profile_requests, to_plain(request))
        before, self.answered = self.answered, latest
        await self.profiles.answer_profile_requests(before, latest)
        return await self.answer(request.id)

    async def answer(self, name: str) -> ProfileAnswer:
        """Return the present answer to a request."""
        await self.profiles.journal.files.await_queued_work(10)
        found = profile_mailbox(self.paths).get_answer(name)
        assert found is not None
        return found

    def report(self, rank: int, name: str = NAME, **values: Any) -> None:
        """Let a rank report."""
        told = RankProfile(**{"rank": rank, "node": "n", "first_step": 7, "steps": 3, **values})
        self.profiles.record_rank_profile(messages.Profiled(id=name, round=5, profile=told))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return one whose round trains."""
    round_ = FourRanks()
    paths = AttemptPaths(tmp_path)
    profiles = Profiles(
        journal=Journal(paths=paths),
        agents=round_,  # type: ignore[arg-type]
        outlook=SimpleNamespace(round=round_),  # type: ignore[arg-type]
    )
    return Desk(paths, round_, profiles)


def test_request_goes_to_its_ranks_and_is_done_when_all_have_reported(desk: Desk) -> None:
    """Reports of other ranks and of other profiles change nothing."""

    async def scene() -> None:
        answer = await desk.ask(REQUEST)
        assert (answer.done, answer.refused, answer.round) == (False, None, 5)
        (order,) = desk.round.orders
        assert (order.id, order.round, order.steps, order.ranks) == (NAME, 5, 3, (0, 2))
        desk.report(2)
        desk.report(1)
        desk.report(0, "20260101T000000Z-other")
        answer = await desk.answer(NAME)
        assert (answer.done, [result.rank for result in answer.results]) == (False, [2])
        desk.report(0, steps=0, problem="no")
        answer = await desk.answer(NAME)
        assert (answer.done, [result.problem for result in answer.results]) == (True, ["no", None])

    asyncio.run(scene())
    assert read_latest_profile_answer(desk.paths) is not None


def test_another_request_is_refused_while_one_is_under_way(desk: Desk) -> None:
    """It says why; once the first is done, the next is taken."""
    second = replace(REQUEST, id="20260101T000001Z-cd34")

    async def scene() -> None:
        await desk.ask(REQUEST)
        answer = await desk.ask(second)
        assert (answer.done, answer.round) == (True, None)
        assert answer.refused == "a profile of rank 0, 2 is under way"
        desk.report(0)
        desk.report(2)
        third = replace(second, id="20260101T000002Z-ef56", ranks=())
        answer = await desk.ask(third)
        assert (answer.refused, answer.ranks) == (None, (0, 1, 2, 3))

    asyncio.run(scene())
    assert getattr(read_latest_profile_answer(desk.paths), "id", "") == "20260101T000002Z-ef56"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ranks": (0, 4, 5)}, "it has no rank 4-5 now; it has 0-3"),
        ({"ranks": (-1,)}, "it has no rank -1 now"),
        ({"steps": 0}, "1 to 1000 steps"),
        ({"steps": 10**9}, "1 to 1000 steps"),
    ],
)
def test_request_that_cannot_be_followed_is_refused(desk: Desk, change: dict[str, Any], why: str) -> None:
    """The verb checks the same before; a round may be smaller than the run was planned."""
    answer = asyncio.run(desk.ask(replace(REQUEST, **change)))
    assert why in str(answer.refused)
    assert desk.round.orders == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"asked_to_leave": True}, "it was asked to leave"),
        ({"is_watching": False}, "its ranks are being started, or have just ended"),
        ({"step": None}, "none of its ranks has begun a step"),
    ],
)
def test_round_that_cannot_be_profiled_says_why(desk: Desk, change: dict[str, Any], why: str) -> None:
    """Between two rounds there is none at all."""
    for name, value in change.items():
        setattr(desk.round, name, value)
    assert why in str(asyncio.run(desk.ask(REQUEST)).refused)
    desk.profiles.outlook.round = None
    again = replace(REQUEST, id="20260101T000003Z-a")
    assert asyncio.run(desk.ask(again)).refused == "its ranks are being started"


def test_ranks_that_end_before_are_no_reason_to_wait(desk: Desk) -> None:
    """One that had ended already, one that ends, and those of a round that is over."""

    async def scene() -> None:
        desk.round.exits.add(3)
        answer = await desk.ask(replace(REQUEST, ranks=()))
        assert [(result.rank, result.problem) for result in answer.results] == [(3, "the rank ended before")]
        desk.profiles.fail_profiles_of_ended_rank(4, 1)  # an earlier round
        desk.profiles.fail_profiles_of_ended_rank(5, 2)
        desk.report(0)
        assert not (await desk.answer(NAME)).done
        desk.profiles.fail_profiles_of_ended_round(5)
        answer = await desk.answer(NAME)
        assert answer.done
        assert [result.problem is None for result in answer.results] == [True, False, False, False]

    asyncio.run(scene())


def test_planned_profile_is_answered_without_a_request(desk: Desk) -> None:
    """Of the ranks that the round has."""
    name = planned_profile_id(5)

    async def scene() -> None:
        desk.report(1, name)
        answer = await desk.answer(name)
        assert (answer.ranks, answer.done) == ((0, 1), False)
        desk.report(0, name)
        assert (await desk.answer(name)).done

    asyncio.run(scene())


def test_lines_that_are_no_requests_are_passed_over(desk: Desk) -> None:
    """Such as one whose name would leave the folder."""
    for line in ({}, {"id": 3}, {**to_plain(REQUEST), "id": "../../etc"}):
        append_json_lines(desk.paths.profile_requests, line)
    answer = asyncio.run(desk.ask(REQUEST))
    assert answer.refused is None
    assert len(desk.round.orders) == 1
    assert [path.name for path in desk.paths.profiles.iterdir()] == [f"{NAME}.json"]
