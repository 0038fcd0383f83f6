"""Promises of hpckit.record.durations: earlier launches tell which runs take longest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hpckit.model import events
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.model.plan import LaunchPlan, SweepPoint
from hpckit.model.search import Sweep
from hpckit.model.states import RunState
from hpckit.planning.jobs.shared_jobs import sort_plan_longest_first
from hpckit.planning.plan import LaunchIdentity, build_launch_plan
from hpckit.record.durations import find_durations_by_signature, sum_attempt_durations
from hpckit.record.freeze import write_frozen_launch
from hpckit.record.launches import load_launch
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.store import append_event, make_private_folder

START = datetime(2026, 1, 1, tzinfo=UTC)


def planned(outputs: Path, *, day: int, name: str = "demo", count: int = 4) -> LaunchPlan:
    """Plan a launch of runs that share a job, one a seed."""
    settings = LaunchConfig(
        name=name,
        entry_point="train:main",
        cluster=Cluster(kind=ClusterKind.slurm),
        sweep=Sweep(runs_per_job=2),
    )
    points = [
        SweepPoint(
            overrides=(f"seed={seed}",), config={**to_plain(settings), "seed": seed}, settings=settings
        )
        for seed in range(count)
    ]
    launch = f"{name}-202601{day:02d}-000000-ab"
    return build_launch_plan(
        points,
        identity=LaunchIdentity(id=launch, created_at=START),
        folder=str(outputs / launch),
        arguments=("launch",),
        python="/usr/bin/python3",
    )


def freeze_ended(plan: LaunchPlan, *ends: tuple[RunState, int]) -> None:
    """Freeze a launch whose runs came to this, after so many seconds."""
    snapshot = CodeSnapshot(root=Path("/p"), working_dir=".", python_path=(), files=None, git=None)
    write_frozen_launch(plan, scripts={0: "#!/bin/sh\n"}, snapshot=snapshot, environment={})
    for index, (state, seconds) in enumerate(ends):
        paths = LaunchPaths(Path(plan.folder)).run(index).attempt(1)
        make_private_folder(paths.folder)
        process: dict[str, Any] = {"host": "n1", "pid": 1, "started": "1"}
        told = events.AttemptStarted(at=START, attempt=1, job="7", restart_count=0, **process)
        end = START + timedelta(seconds=seconds)
        append_event(paths.events, told)
        append_event(paths.events, events.AttemptEnded(at=end, state=state, exit_code=0))


def test_durations_are_those_of_the_newest_completed_run(tmp_path: Path) -> None:
    """A run that failed, another name, and a launch that cannot be read tell nothing."""
    done, failed = RunState.completed, RunState.failed
    freeze_ended(planned(tmp_path, day=1), (done, 10), (done, 20), (done, 30), (failed, 40))
    freeze_ended(planned(tmp_path, day=2), (done, 11), (failed, 21))
    freeze_ended(planned(tmp_path, day=3, name="demo2"), (done, 99))
    (tmp_path / "demo-20260104-000000-ab").mkdir()
    (tmp_path / "demo-20260104-000000-ab" / "launch.json").write_text("{")
    plan = planned(tmp_path, day=5)
    found = find_durations_by_signature(tmp_path, "demo", {run.signature for run in plan.runs})
    seconds = [found.get(run.signature, timedelta()).total_seconds() for run in plan.runs]
    assert seconds == [11, 20, 30, 0]
    assert sort_plan_longest_first(plan, found).jobs[0].runs == (2, 3, 1, 0)
    assert sort_plan_longest_first(plan, {}) == plan


def test_time_taken_is_of_all_attempts_that_ended(tmp_path: Path) -> None:
    """What was interrupted counts, too: the run goes on from there, or begins anew."""
    plan = planned(tmp_path, day=1)
    freeze_ended(plan, (RunState.interrupted, 10))
    launch = load_launch(Path(plan.folder))
    assert sum_attempt_durations(launch, 0) == timedelta(seconds=10)
    assert sum_attempt_durations(launch, 1) is None
