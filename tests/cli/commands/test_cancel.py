"""Promises of `hpckit cancel`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from waiting import LIMIT_S

from hpckit.errors import SchedulerAwayError, UsageError
from hpckit.model import events
from hpckit.model.launch import ClusterKind
from hpckit.record.launches import read_launch_events
from hpckit.record.process import read_process_start_id, this_host


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process to carry runs; it ends with the test."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield child
    child.kill()
    child.wait()


def carrier(child: subprocess.Popen[bytes]) -> tuple[str, int, str]:
    """Return how records name a process."""
    return (this_host(), child.pid, read_process_start_id(child.pid) or "")


def wishes(launch: Any) -> list[tuple[int, ...]]:
    """Return the cancellations recorded."""
    history = read_launch_events(launch)
    return [event.runs for event in history if isinstance(event, events.CancelRequested)]


def read(desk: Any, verb: str, *words: str) -> list[dict[str, Any]]:
    """Return the runs of a verb's --json."""
    runs: list[dict[str, Any]] = json.loads(desk.say(verb, *words, "--json").out)["runs"]
    return runs


def test_cancel_of_a_rendered_launch_cancels_it(desk: Any) -> None:
    """Runs that were never submitted are cancelled by our record alone."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    assert [run["outcome"] for run in read(desk, "cancel")] == ["requested", "requested"]
    assert wishes(launch) == [(0, 1)]
    assert [run["state"] for run in read(desk, "status")] == ["cancelled", "cancelled"]


def test_cancel_takes_several_runs(desk: Any) -> None:
    """Of one launch or of several; each once, and no other."""
    sweep = [("a=1",), ("a=2",), ("a=3",)]
    launches = [desk.freeze(sweep=sweep, minute=minute) for minute in range(2)]
    first, second = (launch.id for launch in launches)
    said = read(desk, "cancel", f"{first}.0", f"{first}.2", f"{first}.0", f"{second}.1")
    assert [run["run"] for run in said] == [f"{first}.0", f"{first}.2", f"{second}.1"]
    assert [wishes(launch) for launch in launches] == [[(0,), (2,)], [(1,)]]


def test_cancel_twice_is_the_same_as_once(desk: Any) -> None:
    """A second time there is nothing left to ask for, and nothing wrong."""
    launch = desk.freeze()
    desk.say("cancel")
    said = desk.say("cancel")
    assert (said.code, said.out) == (0, f"{launch.id}.0: already over (cancelled)\n")
    assert wishes(launch) == [(0,)]


def test_cancel_names_runs_that_had_ended(desk: Any, writer: Any) -> None:
    """What is over stays as it is, and is said to be."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    attempt = writer(launch=launch, index=0)
    attempt.start()
    attempt.complete()
    outcomes = [(run["state"], run["outcome"]) for run in read(desk, "cancel")]
    assert outcomes == [("completed", "already_ended"), ("pending", "requested")]
    assert wishes(launch) == [(1,)]


def test_cancel_of_a_run_signals_its_supervisor(
    desk: Any, writer: Any, process: subprocess.Popen[bytes]
) -> None:
    """One local run is stopped by asking its supervisor to leave."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    writer(launch=launch, index=1).start(process=carrier(process))
    desk.say("cancel", f"{launch.id}.1")
    assert process.wait(timeout=LIMIT_S) == -signal.SIGTERM
    assert wishes(launch) == [(1,)]


def test_cancel_of_a_launch_signals_the_local_executor(desk: Any, process: subprocess.Popen[bytes]) -> None:
    """A whole local launch is stopped by asking its executor to leave."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    host, pid, mark = carrier(process)
    desk.tell(launch, events.LocalStarted(at=launch.created_at, host=host, pid=pid, started=mark))
    desk.say("cancel")
    assert process.wait(timeout=LIMIT_S) == -signal.SIGTERM


def test_cancel_spares_a_process_that_took_over_the_number(
    desk: Any, writer: Any, process: subprocess.Popen[bytes]
) -> None:
    """A pid that now names another process is left alone: its start mark differs."""
    launch = desk.freeze()
    host, pid, _ = carrier(process)
    writer(launch=launch).start(process=(host, pid, "another start"))
    desk.tell(launch, events.LocalStarted(at=launch.created_at, host=host, pid=pid, started="1"))
    desk.say("cancel")
    assert process.poll() is None


def test_cancel_of_a_run_on_another_host_says_where(desk: Any, writer: Any) -> None:
    """Processes elsewhere cannot be signalled; the wish is recorded and the host named."""
    launch = desk.freeze()
    writer(launch=launch).start(process=("elsewhere", 1, "1"))
    with pytest.raises(UsageError, match="elsewhere"):
        desk.say("cancel")
    assert wishes(launch) == [(0,)]


def submit(desk: Any, slurm: Any, launch: Any) -> str:
    """Submit a held array for a launch of three and record it; return the main id."""
    named = f"--job-name={launch.jobs[0].name}"
    job: str = slurm.slurm(
        "sbatch", "--parsable", "--hold", "--array=0-2", named, "--output=/dev/null", "--wrap=true"
    ).strip()
    at = launch.created_at + timedelta(seconds=1)
    desk.tell(launch, events.Submitted(at=at, job_index=0, job=job))
    return job


SWEEP = [("a=1",), ("a=2",), ("a=3",)]


def test_cancel_of_one_run_cancels_its_array_element(on_slurm: Any, fake_slurm: Any) -> None:
    """Only the element of the run is cancelled; its siblings wait on."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm, sweep=SWEEP)
    submit(on_slurm, fake_slurm, launch)
    on_slurm.say("cancel", f"{launch.id}.1")
    states = [run["state"] for run in read(on_slurm, "status")]
    assert states == ["pending", "cancelled", "pending"]


def test_cancel_of_a_launch_cancels_every_job(on_slurm: Any, fake_slurm: Any) -> None:
    """All elements go, and asking again is no error."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm, sweep=SWEEP)
    submit(on_slurm, fake_slurm, launch)
    on_slurm.say("cancel")
    assert {run["state"] for run in read(on_slurm, "status")} == {"cancelled"}
    assert {run["outcome"] for run in read(on_slurm, "cancel")} == {"already_ended"}


def test_elements_at_even_distances_that_wait_on_are_not_taken_for_lost(
    on_slurm: Any, fake_slurm: Any
) -> None:
    """After every second one was cancelled Slurm writes `7_[0-22:2]`, all of it to be cancelled."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm, sweep=[(f"a={n}",) for n in range(24)])
    named = f"--job-name={launch.jobs[0].name}"
    hold = ("--hold", "--array=0-23", named, "--output=/dev/null", "--wrap=true")
    job = fake_slurm.slurm("sbatch", "--parsable", *hold).strip()
    at = launch.created_at + timedelta(seconds=1)
    on_slurm.tell(launch, events.Submitted(at=at, job_index=0, job=job))
    on_slurm.say("cancel", *(f"{launch.id}.{n}" for n in range(1, 24, 2)))
    assert f"{job}_[0-22:2]" in fake_slurm.slurm("squeue", "--noheader", "--Format=JobArrayID:0|")
    states = [run["state"] for run in read(on_slurm, "status", "--fresh")]
    assert states == ["pending", "cancelled"] * 12
    on_slurm.say("cancel")
    assert fake_slurm.slurm("squeue", "--noheader", "--Format=JobArrayID:0|").strip() == ""


def test_cancel_finds_a_job_whose_answer_was_lost(on_slurm: Any, fake_slurm: Any) -> None:
    """A submission never confirmed is looked for by name, and cancelled."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm)
    name = launch.jobs[0].name
    intent = events.SubmitIntended(at=launch.created_at, job_index=0, job_name=name)
    on_slurm.tell(launch, intent)
    job = fake_slurm.slurm("sbatch", "--parsable", "--hold", f"--job-name={name}", "--wrap=true").strip()
    on_slurm.say("cancel")
    said = fake_slurm.slurm("sacct", f"--jobs={job}", "--noheader", "--parsable2", "--format=State")
    assert said.startswith("CANCELLED")


def test_cancel_with_the_scheduler_away_keeps_the_request(on_slurm: Any, fake_slurm: Any) -> None:
    """The wish is recorded and the error says that Slurm was not reached; the run still waits."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm, sweep=SWEEP)
    submit(on_slurm, fake_slurm, launch)
    for program in ("squeue", "sacct", "scancel"):
        fake_slurm.remove(program)
    with pytest.raises(SchedulerAwayError):
        on_slurm.say("cancel")
    assert wishes(launch) == [(0, 1, 2)]
    assert {run["state"] for run in read(on_slurm, "status")} == {"pending"}


@pytest.fixture
def scancels(fake_slurm: Any) -> Callable[[], list[list[str]]]:
    """Return a way to see with what words scancel has been called."""
    program, log = fake_slurm.bin_dir / "scancel", fake_slurm.bin_dir.parent / "scancels"
    real = fake_slurm.bin_dir.parent / "real" / "scancel"
    real.parent.mkdir()
    program.rename(real)
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {real} "$@"\n')
    program.chmod(0o700)
    return lambda: [line.split() for line in log.read_text().splitlines()]


def test_cancel_by_state_spares_the_others(
    on_slurm: Any, fake_slurm: Any, writer: Any, scancels: Callable[[], list[list[str]]]
) -> None:
    """What waits goes in one scancel, what is over stays, and what is meant is said before."""
    launch = on_slurm.freeze(kind=ClusterKind.slurm, sweep=[*SWEEP, ("a=4",)])
    named = f"--job-name={launch.jobs[0].name}"
    job = fake_slurm.slurm(
        "sbatch", "--parsable", "--hold", "--array=0-3", named, "--output=/dev/null", "--wrap=true"
    ).strip()
    on_slurm.tell(launch, events.Submitted(at=launch.created_at, job_index=0, job=job))
    attempt = writer(launch=launch, index=2)
    attempt.start(job=f"{job}_2")
    attempt.complete()
    said = on_slurm.say("cancel", "--state", "pending")
    assert f"3 of 4 runs of {launch.id}: 0-1, 3 (3 pending)" in said.err
    assert wishes(launch) == [(0, 1, 3)]
    assert scancels() == [[f"{job}_[0-1,3]"]]


def test_cancel_of_all_launches_takes_one_call(
    on_slurm: Any, fake_slurm: Any, scancels: Callable[[], list[list[str]]]
) -> None:
    """However many launches have runs that are meant, Slurm is told once."""
    launches = [
        on_slurm.freeze(name, kind=ClusterKind.slurm, sweep=SWEEP, minute=minute)
        for minute, name in enumerate(("one", "two"))
    ]
    mains = [submit(on_slurm, fake_slurm, launch) for launch in launches]
    runs = read(on_slurm, "cancel", "--all", "--override", "a=[12]")
    assert [run["index"] for run in runs] == [0, 1, 0, 1]
    assert [wishes(launch) for launch in launches] == [[(0, 1)], [(0, 1)]]
    (words,) = scancels()
    assert set(words) == {f"{main}_[0-1]" for main in mains}


def test_cancel_of_all_launches_goes_on_past_one_that_cannot_be_told(
    desk: Any, writer: Any, process: subprocess.Popen[bytes]
) -> None:
    """A run carried elsewhere is an error, after all others were stopped."""
    here, there = desk.freeze("here"), desk.freeze("there", minute=1)
    writer(launch=there).start(process=("elsewhere", 1, "1"))
    writer(launch=here).start(process=carrier(process))
    with pytest.raises(UsageError, match="elsewhere"):
        desk.say("cancel", "--all")
    assert process.wait(timeout=LIMIT_S) == -signal.SIGTERM
    assert [wishes(here), wishes(there)] == [[(0,)], [(0,)]]


def test_cancel_without_doing_it_changes_nothing(desk: Any) -> None:
    """--dry-run names the runs and records no wish."""
    launch = desk.freeze(sweep=SWEEP)
    runs = read(desk, "cancel", "--dry-run", "--override", "a=2")
    assert [(run["index"], run["outcome"]) for run in runs] == [(1, "would_request")]
    assert wishes(launch) == []


def test_cancel_says_where_a_filter_finds_nothing(desk: Any) -> None:
    """No run that is meant is no error."""
    launch = desk.freeze(sweep=SWEEP)
    said = desk.say("cancel", "--failed")
    assert (said.code, said.out) == (0, "")
    assert f"there is nothing to cancel in {launch.id}" in said.err


def test_cancel_of_a_name_tells_of_an_older_launch_that_lives(desk: Any) -> None:
    """A rerun takes the name over; without a word one would believe that all is over."""
    older = desk.freeze(sweep=SWEEP)
    newer = desk.freeze(minute=1)
    other = desk.freeze("demo-other", minute=2)
    desk.say("cancel", "demo")
    told = f"an older launch of this name is under way: {older.id} (3 pending)"
    said = desk.say("cancel", "demo")
    assert said.out == f"{newer.id}.0: already over (cancelled)\n"
    assert told in said.err
    assert other.id not in said.err
    said = desk.say("cancel", "demo", "--override", "a=2")
    assert f"there is nothing to cancel in {newer.id}" in said.err
    assert f"under way: {older.id} (1 pending)" in said.err
    assert "older" not in desk.say("cancel", newer.id).err
    assert "older" not in desk.say("cancel", "demo", older.id).err
    assert "older" not in desk.say("cancel", "demo").err
    assert wishes(older) == [(0, 1, 2)]


def test_cancel_counts_what_is_over(desk: Any, writer: Any) -> None:
    """The runs that it stops stand alone; JSON has a line for each."""
    launch = desk.freeze(sweep=[*SWEEP, ("a=4",)])
    for index in (0, 1, 3):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.complete()
    assert desk.say("cancel", "--dry-run").out.splitlines() == [
        f"{launch.id}: 3 runs already over (3 completed)",
        f"{launch.id}.2: would be cancelled (pending)",
    ]
    assert [run["index"] for run in read(desk, "cancel")] == [0, 1, 2, 3]


def test_cancel_refuses_one_launch_and_all(desk: Any) -> None:
    """A launch and --all contradict each other."""
    launch = desk.freeze()
    with pytest.raises(UsageError, match="every launch"):
        desk.say("cancel", launch.id, "--all")
    assert wishes(launch) == []
