"""Promises of `hpckit status`."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hpckit.errors import NotFoundError, UsageError
from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import ClusterKind
from hpckit.model.states import RoundAction
from hpckit.record.process import read_process_start_id, this_host

START = datetime(2026, 1, 1, tzinfo=UTC)
FIELDS = [
    "run",
    "index",
    "state",
    "job",
    "slurm_state",
    "attempt",
    "round",
    "step",
    "nodes",
    "exit_code",
    "failure",
    "metrics",
    "warnings",
    "goodput",
    "stage",
    "blocked",
    "reason",
    "overrides",
    "total_steps",
    "satellites",
    "preflight",
    "container",
    "staged",
    "grown",
    "telemetry",
    "energy",
    "verdicts",
    "stragglers",
    *("layout", "replicas", "model_parameters", "parameters_per_rank"),
]
GOODPUT_FIELDS = [
    *("goodput", "ettr", "ettr_since_first_step", "ettr_expected"),
    *("wall_s", "productive_s", "checkpoint_s", "start_s", "restart_s", "lost_s"),
    *("suspended_s", "queue_s", "idle_s", "attempts", "rounds", "failures", "planned"),
    *("lost_steps", "saves", "saved_bytes", "writing_s", "writing_share"),
    *("measured", "history"),
]
TRACEBACK = """\
Traceback (most recent call last):
  File "/site/hpckit/runtime/rank.py", line 10, in main
    entry(config, run)
  File "/home/ann/train.py", line 5, in main
    raise ValueError("boom")
ValueError: boom
"""


def read(desk: Any, *words: str) -> dict[str, Any]:
    """Return what `status --json` says."""
    said = desk.say("status", *words, "--json")
    assert said.code == 0
    document: dict[str, Any] = json.loads(said.out)
    return document


def states(document: dict[str, Any]) -> list[str]:
    """Return the states of all runs."""
    return [run["state"] for run in document["runs"]]


def test_status_json_has_the_documented_fields(desk: Any, writer: Any) -> None:
    """Programs find exactly the fields that docs/reference/cli/status.md names, in that order."""
    launch = desk.freeze(sweep=[("+model.lr=0.1", "seed=1")])
    attempt = writer(launch=launch)
    attempt.start(job="12")
    attempt.metrics(3, loss=0.5)
    attempt.metrics(9, loss=0.25, accuracy=0.9)
    attempt.fail(traceback=TRACEBACK)
    document = read(desk)
    names = (
        "launch",
        "scheduler",
        "runs",
        "failures",
        "energy",
        "auto_resume_job",
        "total",
        "matching",
        "queue_age_s",
        "foreign",
    )
    assert list(document) == [*names]
    assert (document["launch"], document["scheduler"]) == (launch.id, "none")
    run = document["runs"][0]
    assert list(run) == FIELDS
    assert list(run.pop("goodput")) == GOODPUT_FIELDS
    assert run == {
        "run": f"{launch.id}.0",
        "index": 0,
        "state": "failed",
        "job": "12",
        "slurm_state": None,
        "attempt": 1,
        "round": 0,
        "step": 9,
        "nodes": ["n1", "n2"],
        "exit_code": 1,
        "failure": {
            "cause": "exception",
            "message": "ValueError: boom",
            "rank": 1,
            "node": "n2",
            "step": 7,
            "traceback": TRACEBACK,
            "signature": "",
            "checkpoint": None,
            "collective": None,
            "place": "",
        },
        "metrics": {"loss": 0.25, "accuracy": 0.9},
        "warnings": [],
        "stage": None,
        "blocked": None,
        "reason": "",
        "overrides": {"model.lr": 0.1, "seed": 1},
        "total_steps": None,
        "satellites": [],
        "preflight": [],
        "container": None,
        "staged": [],
        "grown": [],
        "telemetry": {
            "gpu_utilization": None,
            "gpu_memory_bytes": None,
            "power_w": None,
            "energy_j": None,
            "data_wait_share": None,
        },
        "energy": None,
        "verdicts": [],
        "stragglers": [],
        **dict.fromkeys(FIELDS[-4:]),
    }
    assert document["failures"] == [
        {
            "signature": "",
            "cause": "exception",
            "message": "ValueError: boom",
            "count": 1,
            "runs": [0],
            "example": f"{launch.id}.0",
        }
    ]


def test_status_of_a_rendered_launch_is_pending(desk: Any) -> None:
    """Runs that were never submitted wait, without job, attempt or node."""
    desk.freeze(sweep=[("lr=1",), ("lr=2",)])
    document = read(desk)
    assert states(document) == ["pending", "pending"]
    first = document["runs"][0]
    assert (first["job"], first["attempt"], first["round"], first["step"]) == (None, 0, None, None)
    assert (first["nodes"], first["exit_code"], first["failure"], first["metrics"]) == ([], None, None, {})


def test_status_shows_the_latest_launch_and_any_other_by_name(desk: Any) -> None:
    """Without a name it is the latest; a beginning, a run's id or a folder say another."""
    old, new = desk.freeze("old"), desk.freeze("new", minute=1)
    assert read(desk)["launch"] == new.id
    assert read(desk, "old")["launch"] == old.id
    assert read(desk, str(old.folder))["launch"] == old.id
    assert [run["run"] for run in read(desk, f"{old.id}.0")["runs"]] == [f"{old.id}.0"]


def test_status_of_one_run_shows_only_that_run(desk: Any) -> None:
    """A run's id leaves its siblings out."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",), ("a=3",)])
    assert [run["index"] for run in read(desk, f"{launch.id}.2")["runs"]] == [2]


def test_status_of_an_unknown_launch_names_the_nearest(desk: Any) -> None:
    """A misspelt launch is a usage error with the names that are near."""
    launch = desk.freeze("digits")
    with pytest.raises(NotFoundError) as caught:
        desk.say("status", "digist")
    assert f"nearest: {launch.id}" in caught.value.hint
    with pytest.raises(NotFoundError) as caught:
        desk.say("status", "qqqqqqqqqq")
    assert f"newest: {launch.id}" in caught.value.hint


def test_status_shows_a_failure_with_the_users_own_traceback(desk: Any, writer: Any) -> None:
    """Cause, place and the user's frames are shown, ours are not, and where to read on."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.fail(traceback=TRACEBACK)
    said = desk.say("status")
    assert said.code == 0
    assert "exception (rank 1 on n2 at step 7): ValueError: boom" in said.out
    assert 'File "/home/ann/train.py", line 5' in said.out
    assert "rank.py" not in said.out
    assert f"hpckit logs {launch.id}.0" in said.out
    assert f"hpckit rerun {launch.id}.0 (today's code)" in said.out


def interrupted(desk: Any, writer: Any, *, runs: int = 1) -> Any:
    """Return a launch whose first run lost a rank once, warned, and goes on."""
    launch = desk.freeze(sweep=[(f"a={number}",) for number in range(runs)])
    attempt = writer(launch=launch)
    attempt.start()
    killed = Failure(cause=Cause.signal, message="rank 1 was killed by SIGKILL", rank=1, node="n2")
    first, again = START + timedelta(seconds=70), START + timedelta(seconds=100)
    attempt.tell(
        events.StepReached(at=first, round=0, step=0),
        events.CheckpointSaved(at=first, round=0, step=5, size=2048, stall_s=0.5, duration_s=1),
        events.RoundEnded(
            at=again, round=0, first_step=0, step=9, action=RoundAction.new_round, failure=killed
        ),
        events.Warned(at=again, message="the disk is nearly full"),
        events.RoundStarted(at=again, round=1, world_size=2, nodes=("n1", "n2")),
        events.StepReached(at=again + timedelta(seconds=10), round=1, step=5),
    )
    return launch


def test_status_of_one_run_says_where_its_time_went(desk: Any, writer: Any) -> None:
    """A single run has its warnings, its history and its goodput in a line; more if asked."""
    interrupted(desk, writer)
    lines = desk.say("status").out.splitlines()
    assert "warning: the disk is nearly full" in lines
    (history,) = (line for line in lines if " new round " in line and "SIGKILL" in line)
    assert history.split()[3:10] == ["1", "0", "signal", "rank", "1", "on", "n2"]
    assert lines[-1].startswith("goodput 93.5 % of 9 min; lost: 15 s repeated steps, ")
    assert not any("ETTR" in line for line in lines)
    lines = desk.say("status", "--goodput").out.splitlines()
    assert any(line.startswith("goodput ") and "ETTR" in line for line in lines)
    assert any(line.startswith("repeated steps") for line in lines)
    assert any(line.startswith("1 save, 2.0 KiB") for line in lines)
    assert "1 failure (1 signal) over 2 rounds in 1 attempt; 5 repeated steps" in lines


def test_status_adds_up_the_parts_of_a_run(desk: Any, writer: Any) -> None:
    """The parts in --json are the wall time, to the millisecond."""
    interrupted(desk, writer)
    account = read(desk)["runs"][0]["goodput"]
    parts = ("productive", "checkpoint", "start", "restart", "lost", "queue", "idle")
    assert sum(account[f"{part}_s"] for part in parts) == pytest.approx(account["wall_s"], abs=1e-3)
    assert (account["lost_steps"], account["failures"]) == (5, {"signal": 1})


def test_status_of_many_runs_reads_no_account_unless_asked(desk: Any, writer: Any) -> None:
    """A glance at a sweep does not read every attempt; --goodput does, and has more than a line."""
    interrupted(desk, writer, runs=51)
    assert [run["goodput"] for run in read(desk)["runs"]] == [None] * 51
    assert "goodput" not in desk.say("status").out
    assert read(desk, "--goodput")["runs"][0]["goodput"]["rounds"] == 2
    said = desk.say("status", "--goodput").out
    assert "goodput" in said.splitlines()[2].split()
    assert "repeated steps" in said
    assert "the disk is nearly full" in desk.say("status").out


def test_status_of_a_few_runs_says_their_goodput_in_a_line(desk: Any, writer: Any) -> None:
    """Without being asked: one line for the launch, no column."""
    interrupted(desk, writer, runs=3)
    lines = desk.say("status").out.splitlines()
    assert lines[-1].startswith("goodput 93.5 % of 9 min; lost: ")
    assert "goodput" not in lines[2]


def test_status_shows_in_which_overrides_runs_differ(desk: Any) -> None:
    """Also of one run: of its launch, what all runs have is left out."""
    desk.freeze(sweep=[("model.lr=0.1", "seed=1"), ("model.lr=0.2", "seed=1")])
    lines = [line.split() for line in desk.say("status").out.splitlines()]
    assert lines[2:5] == [
        ["run", "overrides", "state"],
        ["0", "lr=0.1", "pending"],
        ["1", "lr=0.2", "pending"],
    ]
    assert ["1", "lr=0.2", "pending"] in [line.split() for line in desk.say("status", ".1").out.splitlines()]


@pytest.mark.parametrize("verb", ["status", "results"])
def test_override_that_no_run_sets_is_said(desk: Any, verb: str) -> None:
    """A slip, as it selects nothing; of one that some run sets, nothing is said."""
    desk.freeze(sweep=[("model.lr=0.1", "seed=1"), ("model.lr=0.2", "seed=1")])
    said = desk.say(verb, "--override", "rl=0.1")
    assert "hpckit: warning: no run sets rl (--override); runs set model.lr, seed\n" in said.err
    assert "no run sets" not in desk.say(verb, "--override", "lr=7").err


def test_status_says_how_many_steps_there_are(desk: Any, writer: Any) -> None:
    """Where the run has told: how many have begun, of how many."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.metrics(3, loss=0.5)
    progress = {"round": 0, "step": 3, "total": 8, "at": START.isoformat()}
    launch.paths.run(0).attempt(1).progress.write_text(json.dumps(progress))
    assert "  4 of 8  " in desk.say("status").out
    run = read(desk)["runs"][0]
    assert (run["step"], run["total_steps"]) == (3, 8)


def test_status_counts_runs_by_state(desk: Any, writer: Any) -> None:
    """Under the table stands how many runs are in which state."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",), ("a=3",)])
    for index in (0, 1):
        writer(launch=launch, index=index).start()
    writer(launch=launch, index=0).complete()
    said = desk.say("status")
    assert "3 runs: 1 pending, 1 running, 1 completed" in said.out
    assert launch.id in said.out
    assert str(launch.folder) in said.out


def test_status_says_that_a_run_stands_still(desk: Any, writer: Any) -> None:
    """Long before a hang is sure: ten minutes now, with steps of less than a second."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    for index, stepped in ((0, True), (1, False)):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        if stepped:
            at = START + timedelta(minutes=1, seconds=5)
            attempt.tell(events.StepReached(at=at, round=0, step=0))
            progress = {"round": 0, "step": 30, "at": (at + timedelta(seconds=9)).isoformat()}
            launch.paths.run(index).attempt(1).progress.write_text(json.dumps(progress))
    said = "no step has begun for 8 min 46 s; `hpckit stacks` shows what its ranks are doing"
    assert said in " ".join(desk.say("status").out.split())
    assert said in " ".join(desk.say("status", f"{launch.id}.0").out.split())
    assert [one["warnings"] for one in read(desk)["runs"]] == [[said], []]


def test_status_draws_a_table_on_a_terminal(desk: Any, writer: Any) -> None:
    """A terminal gets the same words, drawn."""
    launch = desk.freeze()
    writer(launch=launch).start()
    said = desk.say("status", terminal=True)
    assert "running" in said.out
    assert "n[1-2]" in said.out


def test_status_knows_a_living_supervisor_from_a_dead_one(desk: Any, writer: Any) -> None:
    """A supervisor that is gone without a final event leaves an interrupted run, and says so."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    me = (this_host(), os.getpid(), read_process_start_id(os.getpid()) or "")
    writer(launch=launch, index=0).start(process=me)
    writer(launch=launch, index=1).start(process=(this_host(), os.getpid(), "another start"))
    document = read(desk)
    assert states(document) == ["running", "interrupted"]
    assert document["runs"][1]["failure"]["cause"] == "launcher_lost"
    assert "before recording the outcome" in desk.say("status").out


def test_status_offers_no_resume_where_the_python_is_gone(desk: Any, writer: Any) -> None:
    """It says what `resume` would say."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.interrupt()
    assert f"hpckit resume {launch.id}.0" in desk.say("status").out
    file = launch.paths.launch
    file.write_text(json.dumps(json.loads(file.read_text()) | {"python": "/no/python"}))
    said = desk.say("status").out
    assert "hpckit resume" not in said
    with pytest.raises(UsageError) as refused:
        desk.say("resume")
    assert refused.value.message in said
    assert str(refused.value.hint) in said


def test_status_knows_that_nothing_will_start_a_run(desk: Any) -> None:
    """Runs waiting for a local executor that is gone do not wait for ever."""
    launch = desk.freeze()
    gone = events.LocalStarted(
        at=launch.created_at, host=this_host(), pid=os.getpid(), started="another start"
    )
    desk.tell(launch, gone)
    assert states(read(desk)) == ["interrupted"]
    assert "nothing will start it" in desk.say("status").out


def test_status_reads_torn_lines_and_newer_records(desk: Any, writer: Any) -> None:
    """A line cut short, an event of a newer version and a torn metrics file are no obstacle."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.metrics(4, loss=0.5)
    paths = launch.paths.run(0).attempt(1)
    with paths.events.open("a") as file:
        file.write('{"v":9,"event":"moon_phase","phase":"full"}\n{"v":1,"event":"attempt_en')
    with paths.metrics.open("a") as file:
        file.write('{"step": 5, "lo')
    paths.progress.write_text("{")
    run = read(desk)["runs"][0]
    assert (run["state"], run["metrics"]) == ("running", {"loss": 0.5})


def submit(desk: Any, slurm: Any, launch: Any, *words: str) -> str:
    """Submit something in the launch's name and record it; return the job's main id."""
    job: str = slurm.slurm("sbatch", "--parsable", "--output=/dev/null", *words).strip()
    desk.tell(launch, events.Submitted(at=launch.created_at + timedelta(seconds=1), job_index=0, job=job))
    return job


def test_status_shows_slurms_word_beside_ours(on_slurm: Any, fake_slurm: Any) -> None:
    """A queued job is pending with Slurm's own state and reason."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    job = submit(on_slurm, fake_slurm, launch, "--hold", "--wrap=true")
    document = read(on_slurm)
    assert document["scheduler"] == "answered"
    run = document["runs"][0]
    assert (run["state"], run["slurm_state"], run["job"]) == ("pending", "PENDING", job)
    assert "JobHeldUser" in on_slurm.say("status").out


def test_status_with_the_scheduler_away_shows_our_record(on_slurm: Any, fake_slurm: Any, writer: Any) -> None:
    """Without an answer our own record is shown, with a warning, and the exit code is 0."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    job = submit(on_slurm, fake_slurm, launch, "--hold", "--wrap=true")
    writer(launch=launch).start(job=job)
    for program in ("squeue", "sacct"):
        fake_slurm.remove(program)
    said = on_slurm.say("status", "--json")
    assert said.code == 0
    assert "warning" in said.err
    document = json.loads(said.out)
    assert (document["scheduler"], states(document)) == ("unreachable", ["running"])


def test_status_shows_an_end_only_slurm_knows(on_slurm: Any, fake_slurm: Any) -> None:
    """A batch script that died before any supervisor is a failure in Slurm's words."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    job = submit(on_slurm, fake_slurm, launch, "--wrap=exit 66")
    wait_until_over(fake_slurm, job)
    run = read(on_slurm)["runs"][0]
    assert (run["state"], run["slurm_state"], run["exit_code"]) == ("failed", "FAILED", 66)
    assert run["failure"]["cause"] == "frozen_folder"
    assert "hpckit recorded no start, Slurm says FAILED" in on_slurm.say("status").out


def test_status_shows_where_slurm_disagrees(on_slurm: Any, fake_slurm: Any, writer: Any) -> None:
    """Our record of an end stands, and what Slurm says otherwise is noted."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    job = submit(on_slurm, fake_slurm, launch, "--wrap=exit 5")
    wait_until_over(fake_slurm, job)
    attempt = writer(launch=launch)
    attempt.start(job=job)
    attempt.complete()
    assert states(read(on_slurm)) == ["completed"]
    assert "hpckit recorded it as completed, Slurm says FAILED" in on_slurm.say("status").out


def test_status_of_a_job_slurm_forgot_is_unknown(on_slurm: Any, fake_slurm: Any) -> None:
    """A submitted run that neither began nor is known to Slurm is unknown, and noted."""
    fake_slurm.folder.mkdir(parents=True, exist_ok=True)
    (fake_slurm.folder / "next_id").write_text("1000")
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    on_slurm.tell(launch, events.Submitted(at=launch.created_at, job_index=0, job="999"))
    document = read(on_slurm)
    assert (document["scheduler"], states(document)) == ("answered", ["unknown"])
    assert "no longer knows job 999" in on_slurm.say("status").out


def test_status_says_where_a_submission_was_never_confirmed(desk: Any) -> None:
    """A job that Slurm may or may not have is remarked upon, with who finds out."""
    launch = desk.freeze(kind=ClusterKind.slurm)
    name = launch.jobs[0].name
    intent = events.SubmitIntended(at=launch.created_at, job_index=0, job_name=name)
    desk.tell(launch, intent)
    said = desk.say("status")
    assert said.code == 0
    assert f"not known whether Slurm accepted {name}" in said.err
    assert f"hpckit doctor {launch.id}" in said.err


def test_status_says_that_no_local_executor_was_ever_given_the_runs(desk: Any) -> None:
    """A launcher that was killed between freezing and starting leaves word of what to do."""
    launch = desk.freeze(sweep=(("a=1",), ("a=2",)))
    record = launch.folder / "launch.json"
    record.write_text(record.read_text().replace("/usr/bin/python3", sys.executable))
    said = desk.say("status")
    assert "no local executor ever got 2 runs" in said.err
    named = re.search("`hpckit resume (.*)` begins them", said.err)
    assert named is not None
    resumed = json.loads(desk.say("resume", named[1], "--changed-code", "--dry-run", "--json").out)
    assert launch.runs[0].id in json.dumps(resumed)
    desk.tell(launch, events.LocalStarted(at=launch.created_at, host="elsewhere", pid=1, started="1"))
    assert "executor" not in desk.say("status").err


def wait_until_over(slurm: Any, job: str) -> None:
    """Wait until the fake has ended a job."""
    for _ in range(200):
        if not slurm.slurm("squeue", f"--jobs={job}", "--noheader", "--Format=JobArrayID:0|"):
            return
        time.sleep(0.05)
    raise AssertionError(f"job {job} did not end")


SWEEP = [("+lr=0.1", "seed=1"), ("+lr=0.02", "seed=1"), ("+lr=0.003", "seed=2")]


@pytest.fixture
def swept(desk: Any, writer: Any) -> Any:
    """Return a desk with a sweep of three: completed (loss 2), failed (loss 1), pending."""
    launch = desk.freeze(sweep=SWEEP)
    for index, loss in ((0, 2.0), (1, 1.0)):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.metrics(10 - index, loss=loss)
        attempt.fail() if index else attempt.complete()
    return desk


@pytest.mark.parametrize(
    ("words", "indices"),
    [
        (("--failed",), [1]),
        (("--state", "completed,pending"), [0, 2]),
        (("--state", "completed", "--state", "pending"), [0, 2]),
        (("--override", "lr=0.0*"), [1, 2]),
        (("--override", "lr=0.0*", "--override", "seed=1"), [1]),
        (("--state", "running"), []),
        (("--sort", "loss"), [1, 0, 2]),
        (("--sort", "-loss"), [0, 1, 2]),
        (("--sort", "lr", "--limit", "2"), [2, 1]),
        (("--sort", "step"), [1, 0, 2]),
    ],
)
def test_status_shows_the_runs_asked_for_in_order(
    swept: Any, words: tuple[str, ...], indices: list[int]
) -> None:
    """States, overrides, an order and a limit say which runs are shown."""
    document = read(swept, *words)
    assert [run["index"] for run in document["runs"]] == indices
    assert document["total"] == 3


def test_status_of_some_runs_counts_all_of_them(swept: Any) -> None:
    """Whoever looks at some of the runs is told how all of them stand, and what a limit hides."""
    said = swept.say("status", "--state", "completed,failed", "--limit", "1")
    assert "of all 3 runs: 1 pending, 1 completed, 1 failed" in said.out
    assert "1 more not shown" in said.err


def test_status_of_many_runs_counts_first_and_lists_what_failed_or_runs(desk: Any, writer: Any) -> None:
    """Completed and waiting runs are summed up, unless all are asked for, or some; JSON has all."""
    launch = desk.freeze(sweep=[(f"+lr={index}",) for index in range(30)])
    for index in range(29):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        if index != 3:
            attempt.fail() if index == 7 else attempt.complete()
    lines = desk.say("status").out.splitlines()
    assert lines[2] == "30 runs: 1 pending, 1 running, 27 completed, 1 failed"
    assert [line.split()[:3] for line in lines[4:6]] == [["7", "lr=7", "failed"], ["3", "lr=3", "running"]]
    assert lines[6].startswith("not listed: 1 pending, 27 completed; ")
    command = lines[6].partition("`")[2].partition("`")[0].split()
    every = desk.say(*command[1:]).out.splitlines()
    assert [line.split()[0] for line in every[3:33]] == [str(index) for index in range(30)]
    for words in (("--limit", "26"), ("--state", "completed"), ("--sort", "-lr"), ("--goodput",)):
        assert "not listed" not in desk.say("status", *words).out
    assert len(read(desk)["runs"]) == 30


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--sort", "speed"), "runs have no column 'speed'.*lr"),
        (("--limit", "-1"), "--limit is -1"),
        (("--state", "lost"), "--state: 'lost' is not a state"),
    ],
)
def test_status_refuses_what_it_cannot_show(swept: Any, words: tuple[str, ...], named: str) -> None:
    """A column, a limit or a state that is none is an error that says what is allowed."""
    with pytest.raises(UsageError, match=named):
        swept.say("status", *words)
