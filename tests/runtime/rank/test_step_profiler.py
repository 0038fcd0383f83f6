"""Promises of runtime.rank.step_profiler: windows of steps, and no way to stop training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from hpckit.features.profiling.operations import read_trace_events
from hpckit.features.profiling.summary import summarise_trace
from hpckit.model import messages
from hpckit.model.settings import Profile, ProfileTool
from hpckit.record.layout import RoundPaths
from hpckit.runtime.rank import profile_tools, step_profiler
from hpckit.runtime.rank.step_profiler import StepProfiler


@dataclass
class FakeTool:
    """Counts what it is told, and raises where it is told to."""

    said: list[str] = field(default_factory=list)
    raises: str = ""

    def _say(self, word: str) -> None:
        self.said.append(word)
        if word == self.raises:
            raise RuntimeError(f"{word} failed\nbadly")

    def begin_profile(self) -> None:
        """Begin."""
        self._say("begin")

    def record_next_step(self) -> None:
        """Record a step."""
        self._say("record")

    def stop_and_keep(self) -> None:
        """Hold."""
        self._say("hold")

    def stop_and_write(self) -> int:
        """End."""
        self._say("end")
        return 12

    def stop_and_drop(self) -> None:
        """Drop."""
        self._say("drop")


def order(steps: int = 2, **more: Any) -> messages.StartProfile:
    """Return a request for rank 0."""
    values: dict[str, Any] = {"id": "20260101T000000Z-a", "round": 1, "ranks": (0,), **more}
    return messages.StartProfile(steps=steps, **values)


@dataclass
class Rank:
    """A rank's loop with a profiler in it."""

    tool: FakeTool
    told: list[messages.Profiled]
    profiler: StepProfiler

    def loop(self, first: int, last: int, hear: dict[int, messages.StartProfile]) -> None:
        """Run the steps from first to last; hear requests at the boundary before a step."""
        for step in range(first, last + 1):
            if step in hear:
                self.profiler.accept_profile_request(hear[step])
            self.profiler.begin_due_profile(step)
            self.tool.said.append(f"step {step}")
            self.profiler.end_due_profile(step)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Rank]:
    """Return a maker of ranks whose tool is a fake."""

    def made(**values: Any) -> Rank:
        tool, told = FakeTool(raises=values.pop("raises", "")), list[messages.Profiled]()
        monkeypatch.setattr(step_profiler, "make_recorder", lambda *_: tool)
        profiler = StepProfiler(
            rank=0,
            round=1,
            paths=RoundPaths(tmp_path),
            tell=told.append,  # type: ignore[arg-type]
            **values,
        )
        return Rank(tool, told, profiler)

    return made


def test_window_follows_one_step_of_warm_up(make: Callable[..., Rank]) -> None:
    """Heard before step 3: 3 warms up, 4 and 5 are the profile; then there is none."""
    rank = make()
    rank.loop(0, 7, {3: order(2)})
    steps = [*(f"step {step}" for step in range(3)), "begin", "step 3", "record", "step 4"]
    assert rank.tool.said == [*steps, "record", "step 5", "end", "step 6", "step 7"]
    (told,) = rank.told
    assert (told.profile.first_step, told.profile.steps, told.profile.size) == (4, 2, 12)
    assert told.profile.problem is None


@pytest.mark.parametrize(("first", "recorded"), [(0, 10), (9, 10), (10, 11), (11, None)])
def test_planned_window_begins_at_its_step(
    make: Callable[..., Rank], first: int, recorded: int | None
) -> None:
    """A loop that begins there warms up in it; one that begins later, after a restart, has none."""
    rank = make(planned=Profile(at_step=10, steps=2))
    rank.loop(first, 14, {})
    found = [told.profile.first_step for told in rank.told]
    assert found == ([] if recorded is None else [recorded])
    assert all(told.id == "planned-001" for told in rank.told)


@pytest.mark.parametrize("heard", [9, 8])
def test_planned_window_within_another_is_said_to_be_skipped(make: Callable[..., Rank], heard: int) -> None:
    """A request that is heard, or under way, comes first; that of the plan is answered, once."""
    rank = make(planned=Profile(at_step=10, steps=2))
    rank.loop(0, 20, {heard: order(4)})
    planned, asked = rank.told
    assert (planned.id, planned.profile.steps) == ("planned-001", 0)
    assert planned.profile.problem == "another profile was under way on it"
    assert (asked.profile.first_step, asked.profile.problem) == (heard + 1, None)


def test_other_ranks_have_no_planned_window(make: Callable[..., Rank]) -> None:
    """Ranks are chosen."""
    rank = make(planned=Profile(at_step=1, ranks=[1]))
    rank.loop(0, 9, {})
    assert rank.told == []


def test_loop_that_ends_within_the_window_keeps_what_there_is(make: Callable[..., Rank]) -> None:
    """Fewer steps than asked for, and it says so; without a single one there is nothing."""
    rank = make()
    rank.loop(0, 4, {1: order(5)})
    rank.profiler.finish_profiles()
    rank.profiler.finish_profiles()
    (told,) = rank.told
    assert (told.profile.first_step, told.profile.steps) == (2, 3)
    assert "over after these steps" in str(told.profile.problem)
    rank.loop(5, 5, {5: order(5)})
    rank.profiler.finish_profiles()
    assert rank.told[1].profile.steps == 0
    assert "over before" in str(rank.told[1].profile.problem)
    rank.profiler.accept_profile_request(order(5))
    rank.profiler.finish_profiles()
    assert "over before" in str(rank.told[2].profile.problem)


def test_rank_that_is_asked_to_leave_writes_nothing(make: Callable[..., Rank]) -> None:
    """Its time is for the state."""
    rank = make()
    rank.loop(0, 4, {1: order(9)})
    rank.profiler.drop_profiles()
    assert rank.tool.said[-1] == "drop"
    assert "asked to leave" in str(rank.told[0].profile.problem)


def test_second_request_is_answered_at_once(make: Callable[..., Rank]) -> None:
    """And the first one goes on."""
    rank = make()
    rank.loop(0, 9, {2: order(3), 4: order(3, id="20260101T000000Z-b")})
    first, second = rank.told
    assert (first.id[-1], "under way" in str(first.profile.problem)) == ("b", True)
    assert (second.id[-1], second.profile.steps) == ("a", 3)


@pytest.mark.parametrize("word", ["begin", "record", "end"])
def test_whatever_the_tool_raises_is_told_and_training_continues(
    make: Callable[..., Rank], word: str
) -> None:
    """On one line; and the next request is taken."""
    rank = make(raises=word)
    rank.loop(0, 9, {2: order()})
    (told,) = rank.told
    assert told.profile.problem == f"RuntimeError: {word} failed badly"
    assert told.profile.steps == 0
    assert rank.tool.said[-1] == "step 9"
    rank.tool.raises = ""
    rank.loop(10, 19, {10: order(id="20260101T000000Z-b")})
    assert (rank.told[1].profile.problem, rank.told[1].profile.steps) == (None, 2)


def test_real_profiler_writes_a_trace_of_the_window_and_nothing_else(tmp_path: Path) -> None:
    """Torch's own; twice in one process, with files that are whole and private."""
    told: list[messages.Profiled] = []
    profiler = StepProfiler(paths=RoundPaths(tmp_path), tell=told.append)  # type: ignore[arg-type]
    for first in (0, 10):
        name = f"20260101T000000Z-{first}"
        profiler.accept_profile_request(order(3, id=name))
        for step in range(first, first + 6):
            profiler.begin_due_profile(step)
            torch.ones(64, 64) @ torch.ones(64, 64)
            profiler.end_due_profile(step)
        file = RoundPaths(tmp_path).profile_trace(name, 0)
        summary = summarise_trace(read_trace_events(file))
        assert summary.steps == 3
        assert {one.name: one.count for one in summary.top}["aten::mm"] == 3
        assert told[-1].profile.size == file.stat().st_size
        assert list(file.parent.iterdir()) == [file]
    assert [one.profile.problem for one in told] == [None, None]


def test_folder_that_takes_no_file_costs_the_profile_alone(tmp_path: Path) -> None:
    """Such as a full disk: the loop goes on."""
    told: list[messages.Profiled] = []
    (tmp_path / "rounds").write_text("not a folder")
    paths = RoundPaths(tmp_path / "rounds")
    profiler = StepProfiler(paths=paths, tell=told.append)  # type: ignore[arg-type]
    profiler.accept_profile_request(order(1))
    for step in range(4):
        profiler.begin_due_profile(step)
        profiler.end_due_profile(step)
    assert "Error" in str(told[0].profile.problem)


def test_user_with_a_profiler_of_their_own_keeps_it(tmp_path: Path) -> None:
    """A process has one at a time: ours gives way, and theirs goes on."""
    told: list[messages.Profiled] = []
    profiler = StepProfiler(paths=RoundPaths(tmp_path), tell=told.append)  # type: ignore[arg-type]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        profiler.accept_profile_request(order(1))
        for step in range(4):
            profiler.begin_due_profile(step)
            torch.ones(8) + 1
            profiler.end_due_profile(step)
    assert "own code has started a profiler" in str(told[0].profile.problem)
    assert {average.key: average.count for average in theirs.key_averages()}["aten::add"] == 4


@pytest.mark.parametrize("start", [4, 5, 6, 7])
@pytest.mark.parametrize("stop", [5, 6, 7, 8])
def test_user_may_start_a_profiler_at_any_step_of_ours(tmp_path: Path, start: int, stop: int) -> None:
    """While it warms up, while it records, and over its end: theirs has all of its own steps."""
    told: list[messages.Profiled] = []
    profiler = StepProfiler(paths=RoundPaths(tmp_path), tell=told.append)  # type: ignore[arg-type]
    profiler.accept_profile_request(order(2))
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    for step in range(4, 10):
        profiler.begin_due_profile(step)
        if step == start:
            theirs.start()
        torch.ones(8) + 1
        if step == max(start, stop):
            theirs.stop()
        profiler.end_due_profile(step)
    profiler.finish_profiles()
    steps = max(start, stop) - start + 1
    assert {average.key: average.count for average in theirs.key_averages()}["aten::add"] == steps
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))
    (one,) = told
    ours = start > 6  # ours were steps 5 and 6
    assert (one.profile.problem is None) == ours
    assert RoundPaths(tmp_path).profile_trace(one.id, 0).exists() == ours


def test_loop_that_is_left_records_no_more_and_is_written_later(tmp_path: Path) -> None:
    """What follows the loop is no step, and a profiler of the user's own may come between."""
    told: list[messages.Profiled] = []
    profiler = StepProfiler(paths=RoundPaths(tmp_path), tell=told.append)  # type: ignore[arg-type]
    profiler.accept_profile_request(order(9))
    for step in range(4):
        profiler.begin_due_profile(step)
        torch.ones(8) + 1
        if step < 3:
            profiler.end_due_profile(step)
    profiler.stop_recording()
    profiler.stop_recording()
    torch.ones(8) * 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        torch.ones(8) * 3
    assert not tmp_path.joinpath("profile-20260101T000000Z-a").exists()
    profiler.finish_profiles()
    names = {
        one.name
        for one in summarise_trace(read_trace_events(RoundPaths(tmp_path).profile_trace(told[0].id, 0))).top
    }
    assert "aten::add" in names
    assert "aten::mul" not in names
    assert told[0].profile.steps == 2
    assert {average.key: average.count for average in theirs.key_averages()}["aten::mul"] == 1


def test_nsys_gets_one_window_of_a_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From the first to the last step; a second window is refused, as nsys would not record it."""
    calls, told = list[str](), list[messages.Profiled]()
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    profiler = StepProfiler(
        paths=RoundPaths(tmp_path),
        nsys="/rounds/000/rank-00000.nsys-rep",
        tell=told.append,  # type: ignore[arg-type]
    )
    for name in "ab":
        profiler.accept_profile_request(order(2, id=f"20260101T000000Z-{name}", tool=ProfileTool.nsys))
        for step in range(5):
            profiler.begin_due_profile(step)
            profiler.end_due_profile(step)
    assert calls == ["start", "wait", "stop"]
    assert (told[0].profile.steps, told[0].profile.problem) == (2, None)
    assert "one window" in str(told[1].profile.problem)


@pytest.mark.parametrize(
    ("nsys", "why"),
    [
        (None, "not started below nsys"),
        ("nsys is not on the PATH of node n1", "not on the PATH of node n1"),
        ("/a/rank-00000.nsys-rep", "sees no GPU"),
    ],
)
def test_rank_without_nsys_says_why(tmp_path: Path, nsys: str | None, why: str) -> None:
    """Nothing else happens."""
    with pytest.raises(ValueError, match=why):
        profile_tools.make_recorder(ProfileTool.nsys, tmp_path / "t", nsys)
