"""Promises of `hpckit status --watch`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from cli_world import NOW, START, Terminal, make_context

from hpckit.cli.main import build_verb_parser, import_verb_module
from hpckit.cli.terminal.live_status import parse_watch_interval
from hpckit.errors import UsageError
from hpckit.model import events
from hpckit.model.launch import Cluster, ClusterKind
from hpckit.planning.jobs.service_jobs import build_auto_resume_job
from hpckit.record.store import write_json

SWEEP = [("lr=0.1",), ("lr=0.2",), ("lr=0.3",)]


@dataclass(slots=True, kw_only=True)
class Viewer:
    """Somebody who watches: time passes while they sleep, and then things happen."""

    desk: Any
    happenings: list[Callable[[], object]] = field(default_factory=list)
    now: datetime = NOW
    sleeps: list[float] = field(default_factory=list)
    until: timedelta = timedelta(hours=1)

    def sleep(self, seconds: float) -> None:
        """Let time pass, then one thing happen."""
        self.sleeps.append(seconds)
        self.now += timedelta(seconds=seconds)
        if self.happenings:
            self.happenings.pop(0)()
        if self.now - NOW > self.until:
            raise KeyboardInterrupt

    def watch(self, *words: str, terminal: bool = False) -> str:
        """Return what `status WORDS` wrote, also where it was interrupted."""
        out = Terminal() if terminal else io.StringIO()
        context = make_context(
            self.desk.folder, dict(self.desk.environ), stdout=out, now=lambda: self.now, sleep=self.sleep
        )
        given = build_verb_parser("status").parse_intermixed_args(
            [*words, "--output-dir", str(self.desk.folder)]
        )
        try:
            assert import_verb_module("status").run(given, context) == 0
        except KeyboardInterrupt:
            out.write("interrupted\n")
        return out.getvalue()


@pytest.fixture
def sweep(desk: Any, writer: Any) -> Viewer:
    """Return somebody before a sweep of three that run; they complete one after another."""
    launch = desk.freeze(sweep=SWEEP)
    attempts = [writer(launch=launch, index=index) for index in range(3)]
    for attempt in attempts:
        attempt.start()
    attempts[0].metrics(5, loss=1.0)
    return Viewer(desk=desk, happenings=[attempt.complete for attempt in attempts])


def test_watch_says_a_line_for_each_change_until_the_end(sweep: Viewer) -> None:
    """Elsewhere than on a terminal: plain lines, an end in sight once a run has completed."""
    lines = sweep.watch("--watch").splitlines()
    assert lines[0] == "3 runs: 3 running; 0.0 % done, no estimate yet"
    assert lines[1].startswith("3 runs: 2 running, 1 completed; ")
    assert lines[-1] == "3 runs: 3 completed; 100.0 % done"
    assert len(lines) == 4
    assert set(sweep.sleeps) == {30.0}


def test_watch_of_one_run_counts_its_steps(desk: Any, writer: Any) -> None:
    """No other run has to complete first: its steps say how far it is, its pace for how long."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    told = {"round": 0, "step": 652, "total": 700, "at": START.isoformat()}
    write_json(launch.paths.run(0).attempt(1).progress, told)
    lines = Viewer(desk=desk, happenings=[attempt.complete]).watch("--watch").splitlines()
    # It began nine minutes ago.
    assert lines[0].startswith("1 run: 1 running; 93.3 % done, about 0:38 to go (until 01-01 ")


def test_watch_json_is_an_object_a_line(sweep: Viewer) -> None:
    """Programs get one object for each change, with the documented fields."""
    found = [json.loads(line) for line in sweep.watch("--watch", "5", "--json").splitlines()]
    assert list(found[0]) == [*("launch", "at", "total", "states", "share", "remaining_s", "satellites")]
    assert [one["states"].get("completed", 0) for one in found] == [0, 1, 2, 3]
    assert (found[-1]["share"], found[-1]["remaining_s"]) == (1.0, 0)
    assert set(sweep.sleeps) == {5.0}


def test_watch_draws_states_progress_and_runs_on_a_terminal(sweep: Viewer) -> None:
    """A terminal has a table by state, a bar, and the runs that go on."""
    shown = sweep.watch("--watch", terminal=True)
    assert "share" in shown
    assert "█" in shown
    assert "to go (until" in shown
    assert "loss 1" in shown
    assert set(sweep.sleeps) == {2.0}


def test_watch_shows_what_differs_and_each_failure_once(desk: Any, writer: Any) -> None:
    """Beside the runs that go on stand their overrides; below them a line for each failure."""
    launch = desk.freeze(sweep=SWEEP)
    attempts = [writer(launch=launch, index=index) for index in range(3)]
    for attempt in attempts:
        attempt.start()
    attempts[0].fail()
    attempts[1].fail()
    shown = Viewer(desk=desk, happenings=[attempts[2].complete]).watch("--watch", terminal=True)
    first = shown.split("% done")[1]
    assert "lr=0.3" in first
    assert "lr=0.1" not in first
    assert first.count("2 runs failed (0-1): exception: ValueError: boom") == 1


def test_watch_of_some_overrides_counts_only_those(sweep: Viewer) -> None:
    """A filter by override says what is counted."""
    lines = sweep.watch("--watch", "--override", "lr=0.[23]").splitlines()
    assert lines[0].startswith("2 runs: 2 running")
    assert lines[-1].startswith("2 runs: 2 completed")


def test_watch_sees_runs_that_are_resumed(desk: Any, writer: Any) -> None:
    """A run that had ended and begins anew is followed on, as long as another goes on."""
    launch = desk.freeze(sweep=SWEEP[:2])
    first, second = (writer(launch=launch, index=index) for index in (0, 1))
    first.start()
    first.fail()
    second.start()
    again = writer(launch=launch, index=0, attempt=2)

    def resume() -> None:
        again.start()
        wish = events.CancelRequested(at=launch.created_at, runs=())
        desk.tell(launch, wish)

    viewer = Viewer(desk=desk, happenings=[resume, again.complete, second.complete])
    lines = viewer.watch("--watch").splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "2 runs: 1 running, 1 failed",
        "2 runs: 2 running",
        "2 runs: 1 running, 1 completed",
        "2 runs: 2 completed",
    ]


def test_watch_asks_slurm_rarely(desk: Any, fake_slurm: Any) -> None:
    """Ten minutes of looking every two seconds cost a handful of questions."""
    desk.environ = fake_slurm.environ
    program, log = fake_slurm.bin_dir / "squeue", fake_slurm.bin_dir.parent / "asked"
    real = fake_slurm.bin_dir.parent / "real" / "squeue"
    real.parent.mkdir()
    program.rename(real)
    program.write_text(f'#!/bin/sh\necho asked >> {log}\nexec {real} "$@"\n')
    program.chmod(0o700)
    launch = desk.freeze(kind=ClusterKind.slurm)
    job = fake_slurm.slurm("sbatch", "--parsable", "--hold", "--wrap=true").strip()
    desk.tell(launch, events.Submitted(at=launch.created_at, job_index=0, job=job))
    viewer = Viewer(desk=desk, until=timedelta(minutes=10))
    said = viewer.watch("--watch", "2")
    assert len(viewer.sleeps) > 290
    assert 2 <= len(log.read_text().splitlines()) <= 6
    assert said.endswith("interrupted\n")


def test_watch_goes_on_while_an_auto_resume_job_will_resume(desk: Any, writer: Any, fake_slurm: Any) -> None:
    """All runs have ended, and one of them badly: more will happen until that job is gone."""
    desk.environ = fake_slurm.environ
    launch = desk.freeze(kind=ClusterKind.slurm)
    attempt = writer(launch=launch)
    attempt.start()
    attempt.fail()
    like = launch.jobs[0].resources
    added = events.JobAdded(
        at=launch.created_at,
        job=build_auto_resume_job(launch.id, index=1, like=like, cluster=Cluster(), after=()),
        after=(),
    )
    run = fake_slurm.slurm("sbatch", "--parsable", "--output=/dev/null", "--wrap=true").strip()
    auto_resume = fake_slurm.slurm("sbatch", "--parsable", "--hold", "--wrap=true").strip()
    desk.tell(launch, added)
    for index, job in ((0, run), (1, auto_resume)):
        desk.tell(launch, events.Submitted(at=launch.created_at, job_index=index, job=job))
    happenings: list[Callable[[], object]] = [str] * 200
    happenings.append(lambda: fake_slurm.slurm("scancel", auto_resume))
    viewer = Viewer(desk=desk, happenings=happenings)
    said = viewer.watch("--watch", "2")
    assert len(viewer.sleeps) > 200
    assert not said.endswith("interrupted\n")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_watch_refuses_an_interval_that_is_none(desk: Any, seconds: str) -> None:
    """An interval is half a second at least."""
    desk.freeze()
    with pytest.raises(UsageError, match=r"0\.5 seconds or more"):
        desk.say("status", f"--watch={seconds}")


def test_watch_takes_a_launch_behind_it(sweep: Viewer) -> None:
    """`--watch LAUNCH` is the launch, no interval."""
    assert "3 completed" in sweep.watch("--watch", "demo")


@pytest.mark.parametrize(("text", "expected"), [("2m", 120.0), ("90s", 90.0), ("1.5", 1.5)])
def test_watch_takes_times_with_units(text: str, expected: float) -> None:
    """A time may be seconds, or have a unit."""
    assert parse_watch_interval(text) == expected
