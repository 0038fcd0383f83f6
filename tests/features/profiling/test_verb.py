"""`hpckit profile`, up to where a supervisor would answer."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from cli_world import START

from hpckit.errors import NotFoundError, RunError, UsageError
from hpckit.model.launch import Resources
from hpckit.model.profile import ProfileAnswer, RankProfile
from hpckit.model.settings import Observe, Profile, ProfileTool
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import make_private_folder
from hpckit.runtime.mailbox import Mailbox, profile_mailbox

NAME = "20260101T000000Z-ab12"
FOUR = Resources(tasks_per_node=4)
ANSWER = ProfileAnswer(id=NAME, at=START, round=0, steps=2, ranks=(0,), done=True)
RESULT = RankProfile(rank=0, node="n1", first_step=7, steps=2, size=9)


def event(name: str, category: str, begin: int, took: int) -> dict[str, Any]:
    """Return an event of a trace, in milliseconds."""
    times = {"ts": begin * 1000, "dur": took * 1000}
    return {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": 1, **times}


def write_trace(paths: AttemptPaths, rank: int, *events: dict[str, Any]) -> None:
    """Write a rank's trace."""
    file = paths.round(0).profile_trace(NAME, rank)
    make_private_folder(file.parent)
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))


@pytest.fixture
def attempt(desk: Any, writer: Any) -> AttemptPaths:
    """Return the attempt of a run of four ranks that runs."""
    launch = desk.freeze(resources=FOUR)
    writer(launch=launch).start()
    paths: AttemptPaths = launch.paths.run(0).attempt(1)
    return paths


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--steps", "0"), "--steps is 0; a profile has 1 to 1000 steps"),
        (("--steps", "1001"), "--steps is 1001"),
        (("--steps", "-3"), "--steps is -3"),
        (("--ranks", "4"), "there is no 4; run .* has ranks 0-3"),
        (("--ranks", "0,x"), "'x' is neither a number nor a range"),
        (("--ranks", ""), "neither a number nor a range"),
        (("--ranks", "2-1"), "ends before it begins"),
        (("--tool", "nsys"), "did not start rank 0 below nsys"),
        (("--last", "--steps", "3"), "--last shows an existing profile"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_asked(
    desk: Any, attempt: AttemptPaths, words: tuple[str, ...], why: str
) -> None:
    """One error each, with what is allowed."""
    with pytest.raises(UsageError, match=why) as caught:
        desk.say("profile", *words)
    assert caught.value.hint
    assert not attempt.profile_requests.exists()


def test_ranks_below_nsys_are_those_of_the_configuration(desk: Any, writer: Any) -> None:
    """The error names the missing one, and what to launch with."""
    observe = Observe(profile=Profile(tool=ProfileTool.nsys, ranks=[0]))
    writer(launch=desk.freeze(resources=FOUR, observe=observe)).start()
    with pytest.raises(UsageError, match="did not start rank 2 below nsys") as caught:
        desk.say("profile", "--tool", "nsys", "--ranks", "0,2")
    assert "observe.profile.ranks=[0,2]" in caught.value.hint


def test_most_ranks_of_a_profile(desk: Any, writer: Any) -> None:
    """All of a large run are too many."""
    writer(launch=desk.freeze(resources=Resources(tasks_per_node=65))).start()
    with pytest.raises(UsageError, match="are 65 ranks; a profile has at most 64"):
        desk.say("profile", "--ranks", "all")


def test_silent_supervisor_is_an_error_after_a_bounded_wait(desk: Any, attempt: AttemptPaths) -> None:
    """The request is written, with what it asks for; the verb gives up after half a minute."""
    with pytest.raises(RunError, match="did not answer within 30 s"):
        desk.say("profile", "--steps", "7", "--ranks", "1,3")
    assert sum(desk.sleeps) == 30
    (line,) = attempt.profile_requests.read_text().splitlines()
    request = json.loads(line)
    assert (request["steps"], request["ranks"], request["tool"]) == (7, [1, 3], "torch")


def test_wait_for_a_run_without_steps_says_that_it_may_hang(
    desk: Any, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half a minute without a step, once; then it waits on."""
    launch = desk.freeze()
    one = writer(launch=launch)
    one.start()
    looks: list[int] = []

    def read(_: object, name: str) -> ProfileAnswer:
        looks.append(1)
        return replace(ANSWER, id=name, done=len(looks) > 100)

    monkeypatch.setattr(Mailbox, "get_answer", read)
    said = desk.say("profile")
    assert len(looks) > 100
    (line,) = [line for line in said.err.splitlines() if "may hang" in line]
    assert re.search(r"no step has begun since \d\d:\d\d:\d\d UTC; the run may hang: ", line)
    assert re.search(rf"`hpckit stacks \S*{launch.id}\.0` shows where$", line)


def test_only_running_runs_are_profiled(desk: Any, writer: Any) -> None:
    """An ended run has no ranks; it may have a profile."""
    launch = desk.freeze()
    one = writer(launch=launch)
    one.start()
    one.complete()
    with pytest.raises(UsageError, match=r"\(completed\): only a running run can be profiled"):
        desk.say("profile")
    with pytest.raises(NotFoundError, match="has no profile") as caught:
        desk.say("profile", "--last")
    assert "observe.profile.at_step" in caught.value.hint


def test_table_says_where_the_time_went(desk: Any, attempt: AttemptPaths) -> None:
    """80 columns, and names of kernels cannot write to the terminal."""
    profile_mailbox(attempt).put_answer(replace(ANSWER, ranks=(0, 1), results=(RESULT,)))
    write_trace(
        attempt,
        0,
        event("ProfilerStep#1", "user_annotation", 0, 50),
        event("ProfilerStep#2", "user_annotation", 50, 50),
        event("gemm\x1b[31m" + "x" * 90, "kernel", 0, 60),
        event("ncclDevKernel_AllReduce", "kernel", 50, 20),
    )
    said = desk.say("profile", "--last")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[2].split() == [
        *("rank", "node", "steps", "a", "step"),
        *("compute", "comm.", "exposed", "copies", "idle"),
    ]
    assert lines[3].replace(" %", "%").split() == [
        *("0", "n1", "7-8", "50.0", "ms"),
        *("60%", "20%", "10%", "0%", "30%"),
    ]
    assert "rank 1: it reported nothing" in said.out
    assert "\x1b" not in said.out
    assert "ui.perfetto.dev" in lines[-1]
    assert lines[-2] == str(attempt.round(0).profile_trace(NAME, 0))
    assert max(len(line) for line in lines if not line.startswith(("/", "run "))) <= 80


def test_json_has_the_whole_summary(desk: Any, attempt: AttemptPaths) -> None:
    """In seconds, with the trace's path."""
    profile_mailbox(attempt).put_answer(replace(ANSWER, results=(RESULT,)))
    write_trace(attempt, 0, event("aten::mm", "cpu_op", 0, 60), event("x", "cpu_op", 70, 30))
    document = json.loads(desk.say("profile", "--last", "--json").out)
    assert (document["id"], document["done"], document["tool"]) == (NAME, True, "torch")
    (rank,) = document["ranks"]
    assert rank["trace"] == str(attempt.round(0).profile_trace(NAME, 0))
    assert rank["summary"]["wall_s"] == pytest.approx(0.1)
    assert rank["summary"]["idle_s"] == pytest.approx(0.01)
    assert rank["summary"]["top"][0]["name"] == "aten::mm"


def test_trace_that_is_gone_or_damaged_is_named(desk: Any, attempt: AttemptPaths) -> None:
    """The other ranks are shown; without any profiled rank the exit code is 1."""
    both = replace(ANSWER, ranks=(0, 1), results=(RESULT, replace(RESULT, rank=1)))
    profile_mailbox(attempt).put_answer(both)
    write_trace(attempt, 1, event("aten::mm", "cpu_op", 0, 60))
    said = desk.say("profile", "--last")
    assert (said.code, "rank 0: cannot read " in said.out) == (0, True)
    assert "No such file" in said.out
    failed = replace(RESULT, steps=0, problem="RuntimeError: no")
    profile_mailbox(attempt).put_answer(replace(ANSWER, results=(failed,)))
    said = desk.say("profile", "--last")
    assert (said.code, "rank 0: RuntimeError: no" in said.out) == (1, True)


def test_answer_with_another_name_is_no_answer(desk: Any, attempt: AttemptPaths) -> None:
    """Paths are made of it."""
    make_private_folder(attempt.profiles)
    for name, text in (("x", "{}"), (NAME, '{"id": "../../x"}'), ("planned-000", "[")):
        attempt.profile_answer(name).write_text(text)
    with pytest.raises(NotFoundError, match="has no profile"):
        desk.say("profile", "--last")
