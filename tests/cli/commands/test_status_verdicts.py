"""Promises of `hpckit status` about verdicts, which need no telemetry."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cli_world import Desk, Writer
from report_launches import troubled_launch

from hpckit.model import events
from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Cluster, ClusterKind, Resources
from hpckit.model.states import RoundAction
from hpckit.model.telemetry.json_form import encode_telemetry
from hpckit.model.telemetry.vocabulary import (
    GpuCounter,
    GpuRow,
    TelemetryRow,
    TelemetrySegment,
    TelemetryTotal,
)
from hpckit.record.store import append_json_lines
from hpckit.values import replace

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KILLED = Failure(cause=Cause.node_lost, message="n2 is lost", node="n2")


def at(minutes: float) -> datetime:
    """Return a moment of the attempt, which begins after a minute."""
    return START + (1 + minutes) * MINUTE


def again(minutes: float, *, first: int, last: int, number: int) -> tuple[events.Event, ...]:
    """Return the loss of a node at step `last`, and a round that begins at `first` a minute on."""
    return (
        events.RoundEnded(
            at=at(minutes),
            round=number,
            first_step=0,
            step=last,
            action=RoundAction.new_round,
            failure=KILLED,
        ),
        events.RoundStarted(at=at(minutes), round=number + 1, world_size=2, nodes=("n1", "n2")),
        events.StepReached(at=at(minutes + 1), round=number + 1, step=first),
    )


def saves(*minutes: float, stall_s: float) -> list[events.Event]:
    """Return saves of the first round at these times."""
    return [
        events.CheckpointSaved(
            at=at(minute), round=0, step=5, size=1 << 30, stall_s=stall_s, duration_s=stall_s
        )
        for minute in minutes
    ]


def told(desk: Any, writer: Any, *history: events.Event, **given: Any) -> Any:
    """Return a launch whose run, two minutes long, has this history."""
    launch = desk.freeze(**given)
    attempt = writer(launch=launch)
    attempt.start()
    attempt.tell(events.StepReached(at=at(0.1), round=0, step=0), *history)
    attempt.complete()
    return launch


def verdicts(desk: Any, *words: str) -> list[dict[str, Any]]:
    """Return what `status --json` says of the first run."""
    run = json.loads(desk.say("status", *words, "--json").out)["runs"][0]
    assert run["stragglers"] == []
    found: list[dict[str, Any]] = run["verdicts"]
    return found


def test_status_says_what_restarts_cost(desk: Any, writer: Any) -> None:
    """A run that lost half of its time to a lost node has a verdict, with number and remedy."""
    told(desk, writer, *again(1, first=1, last=9, number=0))
    (verdict,) = verdicts(desk)
    assert list(verdict) == ["kind", "severity", "message", "remedy", "loss", "evidence"]
    assert (verdict["kind"], verdict["severity"]) == ("restarts", "high")
    assert verdict["message"].startswith("Restarts took 1 min and repeated steps 49 s: 90 % of 2 ")
    assert "1 node_lost" in verdict["message"]
    assert verdict["evidence"]["failures"] == 1
    said = desk.say("status").out
    assert f"restarts (high): {verdict['message']}\n  {verdict['remedy']}\n" in said


def test_status_says_what_saves_cost(desk: Any, writer: Any) -> None:
    """A run that stood still for saves has a verdict; one that saves quickly has none."""
    told(desk, writer, *saves(0.5, 1.0, 1.5, stall_s=6.0))
    (verdict,) = verdicts(desk)
    assert verdict["kind"] == "checkpoint_overhead"
    assert "15 % of 2 min (3 saves of 6 s each)" in verdict["message"]
    told(desk, writer, *saves(0.5, 1.0, 1.5, stall_s=0.5), minute=1)
    assert verdicts(desk) == []


@pytest.mark.parametrize(
    ("kind", "limit_min", "found"),
    [
        (ClusterKind.slurm, 600, ["overallocated"]),
        (ClusterKind.slurm, 30, []),
        (ClusterKind.slurm, None, []),
        (ClusterKind.local, 600, []),
    ],
)
def test_status_says_that_a_time_limit_is_too_long(
    desk: Any, writer: Any, kind: ClusterKind, limit_min: int | None, found: list[str]
) -> None:
    """A completed run of two minutes needs no ten hours; without Slurm there is no limit."""
    told(desk, writer, kind=kind, resources=Resources(timeout_min=limit_min))
    assert [verdict["kind"] for verdict in verdicts(desk)] == found


def test_status_of_an_early_end_says_nothing_of_the_limit(desk: Any, writer: Any) -> None:
    """A run that ended, but not well, may need all the time that it asked for."""
    launch = desk.freeze(kind=ClusterKind.slurm, resources=Resources(timeout_min=600))
    attempt = writer(launch=launch)
    attempt.start()
    attempt.fail()
    assert verdicts(desk) == []


def test_status_of_a_few_runs_has_verdicts_in_json(desk: Any, writer: Any) -> None:
    """Each of several runs has its own; beyond fifty only if asked for."""
    history = again(1, first=1, last=9, number=0)
    told(desk, writer, *history, sweep=[(f"a={number}",) for number in range(3)])
    runs = json.loads(desk.say("status", "--json").out)["runs"]
    assert [len(run["verdicts"]) for run in runs] == [1, 0, 0]
    told(desk, writer, *history, sweep=[(f"a={number}",) for number in range(51)], minute=1)
    assert verdicts(desk) == []
    assert [verdict["kind"] for verdict in verdicts(desk, "--goodput")] == ["restarts"]


def test_status_of_a_few_runs_says_which_are_held_back(desk: Any, writer: Any) -> None:
    """One line for all, so that nobody has to look at each run."""
    history = again(1, first=1, last=9, number=0)
    launch = told(desk, writer, *history, sweep=[(f"a={number}",) for number in range(3)])
    second = writer(launch=launch, index=2)
    second.start()
    second.tell(events.StepReached(at=at(0.1), round=0, step=0), *history)
    second.complete()
    said = desk.say("status").out
    assert "held back: restarts (.0, 2); `hpckit status RUN` says more" in said
    assert "held back" not in desk.say("status", ".1").out


def test_status_of_one_run_says_what_its_code_timed(desk: Any) -> None:
    """`run.timed("forward")` is for whoever looks at the run, not for JSON alone."""
    troubled_launch(desk)
    said = desk.say("status").out
    assert "\ntimed: backward 0.6 s a step (30 %), forward 0.5 s a step (25 %); mean of all " in said


def test_status_of_gpus_that_nobody_measured_has_no_price(desk: Any, writer: Any) -> None:
    """Two GPUs were asked for, and a price is set: zero would be wrong, so one line says why."""
    site = Cluster(kind=ClusterKind.local, price_per_gpu_hour=2.0, gpus_per_node=2)
    told(desk, writer, cluster=site, resources=Resources(gpus_per_node=2))
    said = desk.say("status").out
    assert "energy:" not in said
    assert "GPUs not measured in .0, although requested (observe=off, " in said
    told(desk, writer, minute=1)
    assert "GPUs not measured" not in desk.say("status").out


def test_status_adds_up_the_energy_of_a_launch(desk: Any, writer: Any) -> None:
    """Two runs, each with 3.6 MJ on one GPU for half an hour, and one without a GPU."""
    site = Cluster(kind=ClusterKind.local, pue=1.3)
    launch = told(desk, writer, sweep=[(f"a={number}",) for number in range(3)], cluster=site)
    for index in (1, 2):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        paths = launch.paths.run(index).attempt(1)
        row = TelemetryRow(
            start=START,
            end=START + 30 * MINUTE,
            gpus=(GpuRow(uuid="GPU-1", samples=1, counters={GpuCounter.energy_j: 3.6e6}),),
        )
        for record in (TelemetrySegment(node="n1", start=START, row_s=1800.0), TelemetryTotal(row=row)):
            append_json_lines(paths.newest_telemetry_file("n1"), encode_telemetry(record))
        attempt.complete()
    said = "energy: 2 kWh, 2.6 kWh with cooling and losses (PUE 1.3)"
    assert said in desk.say("status").out
    document = json.loads(desk.say("status", "--json").out)
    assert (document["energy"]["kwh"], document["energy"]["gpu_hours"]) == (2, 1)
    assert document["energy"]["j_per_step"] is None
    assert [one["energy"] and one["energy"]["kwh"] for one in document["runs"]] == [None, 1, 1]


def test_next_attempt_keeps_the_stragglers_of_the_one_before(desk: Desk) -> None:
    """Verdicts are over all attempts: with on_straggler=move a straggler is why there are two."""
    launch = desk.freeze()
    first, second = (Writer(launch=launch, attempt=number) for number in (1, 2))
    slow = Straggler(
        rank=1, node="n2", gpu=None, slower_by=0.3, own_s=1.0, peers_s=0.7, step_s=1.2, windows=9, judged=10
    )
    first.start()
    first.tell(events.StragglerFound(at=at(0), round=0, straggler=slow))
    first.interrupt()
    second.start()
    before = replace(slow, rank=0, node="n1")  # found later: they are said by rank
    second.tell(events.StragglerFound(at=at(1), round=0, straggler=before))
    second.complete()
    (run,) = json.loads(desk.say("status", launch.id, "--json").out)["runs"]
    assert [(one["rank"], one["node"]) for one in run["stragglers"]] == [(0, "n1"), (1, "n2")]
    assert "straggler" in [one["kind"] for one in run["verdicts"]]
