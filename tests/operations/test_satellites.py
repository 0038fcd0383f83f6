"""Promises of satellites that wait when their run ends, on a fake Slurm."""

from __future__ import annotations

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_world import make_context
from waiting import until

from hpckit.context import Context
from hpckit.features.top.reader import TopReader, TopRequest
from hpckit.model import events
from hpckit.operations.running.satellites import (
    GrowOrder,
    cancel_waiting_satellites,
    plan_satellite_job,
    replace_lost_replicas,
)
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import (
    Launch,
    load_launch,
    read_launch_events,
    read_launch_history,
    read_run_records,
)
from hpckit.record.lock import hold_lock

pytestmark = pytest.mark.slow

QUICK = ("experiment=command", "code.snapshot=false", "cluster=slurm")
WAITS = "command=[sh,-c,'until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.1; done']"
HELD = ("sbatch", "--parsable", "--hold", "--wrap=true")


@pytest.fixture
def context(slurm_shell: Any) -> Context:
    """Return the world of a supervisor on the fake cluster."""
    return make_context(Path("/"), slurm_shell.environ, sleep=lambda _: time.sleep(0.01))


@pytest.fixture
def launch(slurm_shell: Any) -> Launch:
    """Return a launch of one run, which has begun."""
    assert slurm_shell("launch", *QUICK, WAITS).code == 0
    begun = load_launch(slurm_shell.outputs[0])
    until(lambda: read_run_records(begun)[0].round is not None)
    return begun


def add_waiting(launch: Launch, fake_slurm: Any, context: Context, order: GrowOrder | None = None) -> str:
    """Record a satellite that Slurm lets wait, as `grow` does; return Slurm's id."""
    now = load_launch(launch.folder)
    job = plan_satellite_job(now, 0, order or GrowOrder(replicas=1), context).job
    record_launch_event(now.paths, events.JobAdded(at=context.now(), job=job, after=()))
    slurm_job = str(fake_slurm.slurm(*HELD, f"--job-name={job.name}")).strip()
    told = events.Submitted(at=context.now(), job_index=job.index, job=slurm_job)
    record_launch_event(now.paths, told)
    return slurm_job


def living(fake_slurm: Any) -> set[str]:
    """Return the ids of the jobs that wait or run."""
    return {*str(fake_slurm.slurm("squeue", "--noheader", "--format=%A")).split()}


def test_satellites_that_wait_are_cancelled_when_their_run_ends(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any
) -> None:
    """By the supervisor, all of them; another job of the user stays, even one of that name."""
    satellites = {add_waiting(launch, fake_slurm, context) for _ in range(2)}
    name = load_launch(launch.folder).jobs[1].name
    other = str(fake_slurm.slurm(*HELD, f"--job-name={name}")).strip()
    assert {*satellites, other} <= living(fake_slurm)
    (run,) = json.loads(slurm_shell("status", "--json").out)["runs"]
    assert {one["job"] for one in run["satellites"]} == satellites
    top = TopReader(launch=load_launch(launch.folder), context=context)
    top.read_frame(TopRequest())
    shown = top.read_frame(TopRequest()).head[1]
    assert "; satellites: " in shown, shown
    assert all(f"{job} pending" in shown for job in satellites)
    (slurm_shell.cwd / "fixed").touch()
    until(lambda: not satellites & living(fake_slurm))
    until(lambda: not read_launch_history(load_launch(launch.folder)).list_satellite_jobs(0))
    refused = [
        event
        for event in read_launch_events(load_launch(launch.folder))
        if isinstance(event, events.SubmitRefused)
    ]
    assert {one.job_index for one in refused} == {1, 2}
    assert {one.message for one in refused} == {
        "no longer needed: the run has ended, and it was cancelled while it waited"
    }
    until(lambda: living(fake_slurm) == {other})
    (run,) = json.loads(slurm_shell("status", "--json").out)["runs"]
    assert (run["state"], run["satellites"]) == ("completed", [])


def test_satellite_of_a_supervisor_waits_for_whoever_adds_jobs(slurm_shell: Any, launch: Launch) -> None:
    """A resume calls sbatch for one job after the other, and each may take a minute."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(0.01)

    begin = datetime.now(UTC)
    context = make_context(
        Path("/"), slurm_shell.environ, now=lambda: begin + timedelta(seconds=sum(slept)), sleep=sleep
    )
    with ThreadPoolExecutor(1) as threads:
        with hold_lock(launch.paths.resume_lock, at=begin, what="is resuming it"):
            grown = threads.submit(replace_lost_replicas, launch, 0, GrowOrder(replicas=1), context)
            until(lambda: sum(slept) > 200 or grown.done())
        assert grown.result() == ("2", 1), context.stderr
    (slurm_shell.cwd / "fixed").touch()


def test_slurm_that_does_not_answer_leaves_the_end_of_the_run_alone(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any, tmp_path: Path
) -> None:
    """The reason is told, nothing is recorded, and nothing is raised."""
    add_waiting(launch, fake_slurm, context)
    away = make_context(
        Path("/"),
        {**context.environ, "PATH": str(tmp_path)},
        stderr=(said := io.StringIO()),
        now=context.now,
        sleep=context.sleep,
    )
    assert cancel_waiting_satellites(launch, 0, away) == ()
    assert "may still be queued" in said.getvalue()
    assert read_launch_history(load_launch(launch.folder)).list_satellite_jobs(0)
    (slurm_shell.cwd / "fixed").touch()
    until(lambda: read_run_records(launch)[0].state.ended)


def test_satellite_brings_what_completes_a_replica_once(
    slurm_shell: Any, fake_slurm: Any, context: Context
) -> None:
    """A node that stands idle is counted on by one job, until that is gone."""
    shape = ("resources.nodes=4", "parallel=layout", "parallel.shard=2", "parallel.replicate=rest")
    assert slurm_shell("launch", *QUICK, WAITS, *shape).code == 0
    begun = load_launch(slurm_shell.outputs[0])
    until(lambda: read_run_records(begun)[0].round is not None)

    def nodes(replicas: int, idle: int) -> int:
        order = GrowOrder(replicas=replicas, idle_nodes=idle)
        return plan_satellite_job(load_launch(begun.folder), 0, order, context).job.resources.nodes

    assert (nodes(1, 0), nodes(1, 1), nodes(2, 1)) == (2, 1, 3)
    order = GrowOrder(replicas=1, idle_nodes=1)
    job = add_waiting(begun, fake_slurm, context, order)
    assert nodes(1, 1) == 2
    fake_slurm.slurm("scancel", job)
    assert nodes(1, 1) == 1
    (slurm_shell.cwd / "fixed").touch()
