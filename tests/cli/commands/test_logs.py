"""Promises of `hpckit logs`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from cli_world import START

from hpckit.errors import NotFoundError, UsageError
from hpckit.model import events
from hpckit.model.diagnosis.collectives import CollectiveWait
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import ClusterKind
from hpckit.model.states import RunState
from hpckit.record.store import append_event, write_text_atomically


def test_logs_print_rank_0_by_default(desk: Any, writer: Any) -> None:
    """A run that goes well is read through its first rank, as it printed it."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.log(0, "zero\n  indented ünïcode\nno newline")
    attempt.log(1, "one\n")
    assert desk.say("logs").out == "zero\n  indented ünïcode\nno newline\n"


def test_logs_print_the_rank_that_failed(desk: Any, writer: Any) -> None:
    """A failed run is read through the rank that is to blame; standard error says which."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.log(0, "zero\n")
    attempt.log(1, "boom\n")
    attempt.fail(rank=1)
    said = desk.say("logs")
    assert said.out == "boom\n"
    assert "rank 1, attempt 1, round 0" in said.err


def test_logs_and_status_say_in_which_collective_ranks_waited(desk: Any, writer: Any) -> None:
    """No rank has printed it; for programs it has fields."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.log(0, "zero\n")
    words = "rank 1 (n2) never entered all_reduce #128 of the default group (float32[1024])"
    wait = CollectiveWait(
        operation="all_reduce",
        sequence=128,
        group="default_pg",
        backend="nccl",
        tensor="float32[1024]",
        waiting=(0,),
        missing=(1,),
        culprit=1,
        words=words,
    )
    failure = Failure(cause=Cause.hang, message=f"{words}; no step began", rank=1, collective=wait)
    at = START + timedelta(minutes=3)
    append_event(
        launch.paths.run(0).attempt(1).events,
        events.AttemptEnded(at=at, state=RunState.failed, exit_code=1, failure=failure),
    )
    assert f"{launch.id}.0 failed: {words}" in desk.say("logs").err
    assert words in desk.say("status").out
    (run,) = json.loads(desk.say("status", "--json").out)["runs"]
    assert run["failure"]["collective"]["missing"] == [1]
    assert words in desk.say("report", "--json").out
    assert "rank 1 (n2) never entered" in desk.say("report", "--markdown").out


def test_logs_of_one_or_all_ranks(desk: Any, writer: Any) -> None:
    """--rank N prints one, --rank all prints every line behind its rank."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.log(0, "a\nb\n")
    attempt.log(1, "c\n")
    assert desk.say("logs", "--rank", "1").out == "c\n"
    assert desk.say("logs", "--rank", "all").out == "0| a\n0| b\n1| c\n"
    attempt.log(300, "far\n")
    assert desk.say("logs", "--rank", "300").out == "far\n", "in a folder of its own"


def test_logs_print_the_latest_attempt_and_round_or_the_one_asked_for(desk: Any, writer: Any) -> None:
    """A restart's log is the one that counts; an earlier attempt's is there for the asking."""
    launch = desk.freeze()
    for number in (1, 2):
        attempt = writer(launch=launch, attempt=number)
        attempt.start()
        attempt.round(1)
        attempt.log(0, f"attempt {number} round 0\n")
        attempt.log(0, f"attempt {number} round 1\n", round_number=1)
    assert desk.say("logs").out == "attempt 2 round 1\n"
    assert desk.say("logs", "--attempt", "1").out == "attempt 1 round 1\n"
    assert desk.say("logs", "--attempt", "1", "--round", "0").out == "attempt 1 round 0\n"
    assert desk.say("logs", "--round", "0").out == "attempt 2 round 0\n"


@pytest.mark.parametrize(
    ("words", "kind", "part"),
    [
        (("--rank", "7"), NotFoundError, "no log of rank 7; it has 0, 1"),
        (("--rank", "first"), UsageError, "a number from 0, or `all`"),
        (("--attempt", "4"), NotFoundError, "no attempt 4; it has 1"),
        (("--round", "3"), NotFoundError, "no round 3; it has 0"),
    ],
)
def test_logs_refuse_what_is_not_there(
    desk: Any, writer: Any, words: tuple[str, ...], kind: type[Exception], part: str
) -> None:
    """A rank or attempt there is not is an error that says which there are."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.log(0, "zero\n")
    attempt.log(1, "one\n")
    with pytest.raises(kind, match=part):
        desk.say("logs", *words)


def test_logs_of_a_sweep_want_a_run(desk: Any) -> None:
    """Several runs and none named is an error that lists them."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    with pytest.raises(UsageError, match=f"{launch.id}.0, {launch.id}.1"):
        desk.say("logs")


def test_logs_of_a_sweep_take_the_only_run_that_failed(desk: Any, writer: Any) -> None:
    """Where one run of many failed, that is the one to read."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",), ("a=3",)])
    attempt = writer(launch=launch, index=1)
    attempt.start()
    attempt.log(1, "boom\n")
    attempt.fail(rank=1)
    said = desk.say("logs")
    assert said.out == "boom\n"
    assert f"{launch.id}.1" in said.err


def test_logs_say_when_there_is_nothing_yet(desk: Any) -> None:
    """A run that has not printed is said to have printed nothing; that is no error."""
    launch = desk.freeze()
    said = desk.say("logs")
    assert (said.code, said.out) == (0, "")
    assert f"nothing has been printed by {launch.id}.0 yet" in said.err


def test_logs_fall_back_to_the_agents_and_the_batch_script(desk: Any, writer: Any) -> None:
    """Where no rank ever started, the agents and the batch script say why."""
    launch = desk.freeze(kind=ClusterKind.slurm, sweep=[("a=1",), ("a=2",)])
    submitted = events.Submitted(at=launch.created_at, job_index=0, job="12")
    desk.tell(launch, submitted)
    write_text_atomically(launch.paths.job_log(0, "12_1"), "module: not found\n")
    assert desk.say("logs", f"{launch.id}.1").out == "module: not found\n"
    make = writer(launch=launch, index=1)
    launch.paths.run(1).attempt(1).folder.mkdir(parents=True)
    make.agents_log("srun: error\n")
    both = desk.say("logs", f"{launch.id}.1").out
    assert both == "agents| srun: error\nbatch| module: not found\n"


def test_logs_fall_back_to_the_local_executor(desk: Any) -> None:
    """A local run whose supervisor never began is explained by the executor's log."""
    launch = desk.freeze()
    write_text_atomically(launch.paths.local_log, "No module named hpckit\n")
    assert desk.say("logs").out == "No module named hpckit\n"


def test_logs_json_holds_texts_and_where_they_lie(desk: Any, writer: Any) -> None:
    """Programs get each log with its kind, rank, attempt, round, path and text."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.log(0, "zero\n")
    document = json.loads(desk.say("logs", "--json").out)
    path = launch.paths.run(0).attempt(1).round(0).rank_log(0)
    assert document == {
        "run": f"{launch.id}.0",
        "logs": [{"kind": "rank", "path": str(path), "rank": 0, "attempt": 1, "round": 0, "text": "zero\n"}],
    }


class _Script:
    """Plays one act each time the verb sleeps."""

    def __init__(self, *acts: Any) -> None:
        self.acts = list(acts)

    def append(self, seconds: float) -> None:
        assert seconds > 0
        self.acts.pop(0)()


def test_logs_follow_through_rounds_and_attempts_to_the_end(desk: Any, writer: Any) -> None:
    """Lines appear as they are completed, from one round and attempt to the next, to the end."""
    launch = desk.freeze()
    first, second = writer(launch=launch), writer(launch=launch, attempt=2)

    def begin() -> None:
        first.start()
        first.log(0, "round 0, li")

    def go_on() -> None:
        first.log(0, "round 0, line 1\n")

    def next_round() -> None:
        first.round(1)
        first.log(0, "round 1\n", round_number=1)

    def next_attempt() -> None:
        second.start()
        second.log(0, "attempt 2\nlast words")

    desk.sleeps = _Script(begin, go_on, next_round, next_attempt, second.complete)
    said = desk.say("logs", "--follow")
    assert said.out == "round 0, line 1\nround 1\nattempt 2\nlast words\n"
    assert "waiting" in said.err
    assert desk.sleeps.acts == []


def test_logs_follow_as_json_prints_one_object_a_line(desk: Any, writer: Any) -> None:
    """Followed by a program, every line is an object that says whose it is."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.log(0, "zero\n")
    attempt.log(1, "one\n")
    attempt.complete()
    said = desk.say("logs", "--follow", "--json", "--rank", "all")
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [(line["rank"], line["line"]) for line in lines] == [(0, "zero"), (1, "one")]


def test_logs_follow_a_requeued_job_on_slurm(desk: Any, fake_slurm: Any, writer: Any) -> None:
    """An interrupted run that Slurm will start again is followed on; one it ended is not."""
    desk.environ = fake_slurm.environ
    launch = desk.freeze(kind=ClusterKind.slurm)
    job = fake_slurm.slurm("sbatch", "--parsable", "--hold", "--wrap=true").strip()
    desk.tell(launch, events.Submitted(at=launch.created_at + timedelta(seconds=1), job_index=0, job=job))
    attempt = writer(launch=launch)
    attempt.start(job=job)
    attempt.log(0, "one\n")
    attempt.interrupt()
    second = writer(launch=launch, attempt=2)

    def again() -> None:
        second.start(job=job, restarts=1)
        second.log(0, "two\n")

    desk.sleeps = _Script(again, second.complete)
    assert desk.say("logs", "--follow").out == "one\ntwo\n"


def test_logs_read_a_log_that_is_no_text(desk: Any, writer: Any) -> None:
    """Bytes that are no UTF-8 are replaced, never an error."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    launch.paths.run(0).attempt(1).round(0).rank_log(0).write_bytes(b"a\xff\nb\n")
    append_event(
        launch.paths.run(0).attempt(1).events, events.StepReached(at=launch.created_at, round=0, step=0)
    )
    assert desk.say("logs").out == "a\ufffd\nb\n"


@pytest.mark.parametrize("option", ["--tail", "-n"])
def test_logs_of_the_end_alone(desk: Any, writer: Any, option: str) -> None:
    """Of each log that many lines; one without a line end counts; more than there are is all."""
    attempt = writer(launch=desk.freeze())
    attempt.start()
    attempt.log(0, "a\nb\nc")
    attempt.log(1, "d\n")
    assert desk.say("logs", option, "2").out == "b\nc\n"
    assert desk.say("logs", option, "9", "--rank", "all").out == "0| a\n0| b\n0| c\n1| d\n"
    assert desk.say("logs", option, "0").out == ""
    lines = [json.loads(line) for line in desk.say("logs", option, "1", "--json").out.splitlines()]
    assert [line["line"] for line in lines] == ["c"]
    attempt.complete()
    assert desk.say("logs", "--follow", option, "1").out == "c\n"
    with pytest.raises(UsageError, match="a whole number of lines"):
        desk.say("logs", option, "few")
