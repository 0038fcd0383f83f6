"""What the index of a launch promises: the same answers as the files, sooner, whatever happens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.model.plan import SweepPoint
from hpckit.model.run import RunRecord, RunView
from hpckit.model.settings import Code
from hpckit.model.states import RunState
from hpckit.planning.plan import LaunchIdentity, build_launch_plan
from hpckit.record import attempts
from hpckit.record.freeze import write_frozen_launch
from hpckit.record.index import LEAST_RUNS, QUIET, RunIndex, load_run_index
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch, load_launch, read_run_records
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.store import append_event, append_json_lines, make_private_folder, read_events, write_json
from hpckit.views.accounts import compute_goodput_by_run

START = datetime(2026, 1, 1, tzinfo=UTC)
SOON = START + timedelta(minutes=30)
LATER = START + timedelta(hours=5)
TOTAL = LEAST_RUNS + 10


@dataclass(slots=True, kw_only=True)
class Sweep:
    """A launch of many runs, read through its index; `read` counts attempts read from files."""

    launch: Launch
    read: list[int] = field(default_factory=list)

    def index(self, now: datetime) -> RunIndex:
        """Open the index."""
        found = load_run_index(self.launch.paths, TOTAL, now)
        assert found is not None
        return found

    def look(self, now: datetime = SOON) -> tuple[RunRecord, ...]:
        """Return all runs through the index, and save it; it has to agree with the files."""
        self.read.clear()
        kept = self.index(now)
        found = read_run_records(self.launch, kept=kept)
        kept.save_new_entries()
        reads = list(self.read)
        assert found == read_run_records(self.launch, metrics=True)
        self.read[:] = reads
        return found

    def attempt(self, run: int, number: int = 1, *, state: RunState = RunState.completed) -> None:
        """Write an attempt of a run as its supervisor would."""
        paths = self.launch.paths.run(run).attempt(number)
        make_private_folder(paths.folder)
        at = START + timedelta(minutes=number)
        failed = Failure(cause=Cause.exception, message="ValueError: no", rank=1, node="n2")
        for event in (
            events.AttemptStarted(
                at=at, attempt=number, job="7_1", restart_count=0, host="n1", pid=9, started="4"
            ),
            events.RoundStarted(at=at, round=0, world_size=1, nodes=("n1", "n2")),
            events.StepReached(at=at, round=0, step=0),
            events.Warned(at=at, message="slow disk"),
            events.AttemptEnded(
                at=at + timedelta(minutes=1),
                state=state,
                exit_code=0 if state is RunState.completed else 1,
                failure=None if state is RunState.completed else failed,
            ),
        ):
            append_event(paths.events, event)
        append_json_lines(paths.metrics, {"step": 3, "at": to_plain(at), "loss": 0.25})
        write_json(paths.progress, {"round": 0, "step": 3, "at": to_plain(at)})


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """Return a sweep of which all runs but the last two have ended, one of them badly."""
    settings = LaunchConfig(name="s", entry_point="a:b", cluster=Cluster(kind=ClusterKind.local), code=Code())
    plan = build_launch_plan(
        [
            SweepPoint(overrides=(f"x={run}",), config=to_plain(settings), settings=settings)
            for run in range(TOTAL)
        ],
        identity=LaunchIdentity(id="s-20260101-000000-ab12", created_at=START),
        folder=str(tmp_path / "s-20260101-000000-ab12"),
        arguments=("launch",),
        python="python",
    )
    code = CodeSnapshot(root=tmp_path, working_dir=".", python_path=(), files=None, git=None)
    write_frozen_launch(plan, scripts={0: "#!/bin/sh\n"}, snapshot=code, environment={})
    found = Sweep(launch=load_launch(Path(plan.folder)))
    for run in range(TOTAL - 2):
        found.attempt(run, state=RunState.failed if run == 5 else RunState.completed)
    real = read_events

    def counted(path: Path, **which: Any) -> Any:
        if path.parent.parent.name == "attempts":
            found.read.append(int(path.parent.parent.parent.name))
        return real(path, **which)

    monkeypatch.setattr(attempts, "read_events", counted)
    return found


def test_index_spares_reading_ended_runs_again(sweep: Sweep) -> None:
    """The first look reads every attempt, the second none, and both say the same."""
    first = sweep.look()
    assert len(sweep.read) == TOTAL - 2
    assert sweep.look() == first
    assert sweep.read == []
    assert first[5].failure is not None


def test_index_sees_what_is_appended(sweep: Sweep) -> None:
    """An event, a metric, another attempt: only the run it belongs to is read anew."""
    sweep.look()
    events_of_3 = sweep.launch.paths.run(3).attempt(1).events
    append_event(events_of_3, events.Warned(at=START, message="late"))
    append_json_lines(sweep.launch.paths.run(4).attempt(1).metrics, {"step": 4, "loss": 0.125})
    sweep.attempt(5, 2)
    sweep.attempt(TOTAL - 1, state=RunState.interrupted)
    found = sweep.look()
    assert sorted(sweep.read) == [3, 4, 5, TOTAL - 1]
    assert found[3].warnings[-1] == "late"
    assert found[4].metrics == {"loss": 0.125}
    assert (found[5].attempt, found[5].state) == (2, RunState.completed)
    assert found[TOTAL - 1].state is RunState.interrupted


def test_index_does_not_keep_runs_that_go_on(sweep: Sweep) -> None:
    """A run that has not ended is read every time."""
    paths = sweep.launch.paths.run(TOTAL - 1).attempt(1)
    make_private_folder(paths.folder)
    started = events.AttemptStarted(
        at=START, attempt=1, job=None, restart_count=0, host="h", pid=1, started="1"
    )
    append_event(paths.events, started)
    for _ in range(2):
        assert sweep.look()[TOTAL - 1].state is RunState.running
        assert TOTAL - 1 in sweep.read


def test_runs_completed_long_ago_are_not_even_looked_at(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an hour no file of a completed run is asked for; one that failed still is."""
    sweep.look()
    sweep.look(LATER)
    asked: list[int] = []
    real = RunIndex.stat_attempt_files

    def stamp(index: RunIndex, run: int, attempt: int) -> list[int] | None:
        asked.append(run)
        return real(index, run, attempt)

    monkeypatch.setattr(RunIndex, "stat_attempt_files", stamp)
    sweep.look(LATER)
    assert asked == [5]
    assert sweep.read == []
    assert QUIET < LATER - SOON


def test_resumed_run_is_looked_at_however_old(sweep: Sweep) -> None:
    """Once the launch's events say that a run was given to another job, its files count again."""
    sweep.look(LATER)
    (job,) = sweep.launch.jobs
    again = replace(job, index=1, name="again", runs=(8,))
    record_launch_event(sweep.launch.paths, events.JobAdded(at=LATER, job=again, after=(1,)))
    sweep.launch = load_launch(sweep.launch.folder)
    assert sweep.look(LATER)[8].state is RunState.pending
    sweep.attempt(8, 2, state=RunState.failed)
    assert sweep.look(LATER)[8].state is RunState.failed
    assert sweep.look(LATER)[8].attempt == 2


def _remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        _remove,
        lambda path: path.write_text(""),
        lambda path: path.write_text(path.read_text()[:-40]),
        lambda path: path.write_text('{"v": 99, "runs": {"1": []}}'),
        lambda path: path.write_text('{"v": 1, "runs": {"1": [], "2": null, "3": [1, [], true, 7]}}'),
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.chmod(0),
    ],
)
def test_index_that_is_missing_or_damaged_is_made_anew(
    damage: Callable[[Path], object], sweep: Sweep
) -> None:
    """Whatever became of it, the answer is that of the files, and the next look reads none."""
    path = sweep.launch.paths.cache_file("runs")
    sweep.look()
    damage(path)
    sweep.look()
    path.parent.chmod(0o700)
    assert len(json.loads(path.read_text())["runs"]) == TOTAL - 2
    sweep.look()
    assert sweep.read == []


def test_index_that_cannot_be_written_does_no_harm(sweep: Sweep) -> None:
    """A folder in its place is passed over."""
    sweep.launch.paths.cache_file("runs").mkdir(parents=True)
    assert sweep.look() == sweep.look()


def test_index_is_written_by_many_at_once(sweep: Sweep) -> None:
    """Several that look at the same time agree, and what they leave is whole."""
    files = read_run_records(sweep.launch, metrics=True)

    def look(_: int) -> bool:
        kept = sweep.index(SOON)
        found = read_run_records(sweep.launch, kept=kept)
        kept.save_new_entries()
        return found == files

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(look, range(12)))
    left = os.listdir(sweep.launch.paths.cache_file("runs").parent)  # noqa: PTH208
    assert left == ["runs.json"]
    sweep.look()
    assert sweep.read == []


def test_accounts_are_kept_as_long_as_the_runs_are(sweep: Sweep) -> None:
    """Where the time went is the same from the index, and computed anew where a run changed."""

    def look() -> dict[int, Any]:
        kept = sweep.index(SOON)
        views = [RunView(record=record) for record in read_run_records(sweep.launch, kept=kept)]
        found = compute_goodput_by_run(sweep.launch, views, SOON, kept)
        assert found == compute_goodput_by_run(sweep.launch, views, SOON)
        return dict(found)

    first = look()
    assert sweep.launch.paths.cache_file("accounts").exists()
    assert look() == first
    sweep.attempt(5, 2)
    assert look()[5].attempts == 2
    assert look()[5].interruptions == first[5].interruptions


def test_small_launches_have_no_index(sweep: Sweep) -> None:
    """A few runs are read as fast as an index would be."""
    assert load_run_index(sweep.launch.paths, LEAST_RUNS - 1, SOON) is None
