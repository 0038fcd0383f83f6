"""`hpckit grow` and `hpckit shrink`, up to where a supervisor or Slurm would answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hpckit.errors import RunError, SchedulerRefusedError, UsageError
from hpckit.features.top.frame import format_launch_and_progress
from hpckit.model.cluster.site import NodeGroup
from hpckit.model.elastic import Satellite
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RunState
from hpckit.operations.running.resize import add_excluded_nodes_hint, check_enough_nodes
from hpckit.report.live import (
    Listed,
    Progress,
    format_progress_line,
    format_satellite_lines,
    format_satellites_line,
    progress_to_json,
    render_live_page,
)
from hpckit.report.machine import run_row_to_json
from hpckit.report.rows import LaunchHead, build_run_row


@pytest.mark.parametrize("verb", ["grow", "shrink"])
def test_run_on_this_machine_has_one_size(desk: Any, writer: Any, verb: str) -> None:
    """One clear error, and nothing is asked."""
    launch = desk.freeze()
    writer(launch=launch).start()
    with pytest.raises(UsageError, match="runs on cluster local, which is one node") as caught:
        desk.say(verb, "--replicas", "1")
    assert "resources.tasks_per_node" in caught.value.hint
    assert not launch.paths.run(0).attempt(1).resize_requests.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("grow", "--replicas", "1", "--time", "0"), "--time is 0; it must be 1 minute or more"),
        (("grow", "--replicas", "x"), "--replicas"),
        (("shrink",), "--replicas"),
    ],
)
def test_wrong_numbers_are_refused(desk: Any, words: tuple[str, ...], said: str) -> None:
    """Before a launch is even looked for."""
    with pytest.raises((UsageError, RunError), match=said):
        desk.say(*words)


def test_live_views_show_satellites_in_one_line() -> None:
    """`status --watch`, as a page, a line and JSON, and `top`: only while there are any."""
    waiting = Satellite(job="9", state="pending", replicas=2)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    states = (RunState.running,)
    calm = Progress(states=states, share=0.5, remaining=None, at=at)
    busy = replace(calm, satellites=(waiting,))
    head, listed = (
        LaunchHead(id="demo", name="", folder="", created_at=at),
        Listed(rows=(), first=0, total=0),
    )
    for progress, found in ((calm, 0), (busy, 1)):
        lines = [str(one) for one in render_live_page(head, progress, listed)]
        assert lines.count("satellite: 9 pending") == found
        assert format_progress_line(progress).count("; satellite: 9 pending") == found
        assert len(progress_to_json("demo", progress)["satellites"]) == found
        assert format_launch_and_progress(head, progress, 1)[1].count("; satellite: 9 pending") == found


def test_satellites_of_a_run_are_shown() -> None:
    """As a line, and as fields of the run in --json."""
    record = RunRecord(id="demo.0", index=0, overrides=(), folder="/f", job="7")
    running = Satellite(job="8", state="running", replicas=1, nodes=("n3", "n4"))
    waiting = Satellite(job="9", state="pending", replicas=2)
    row = build_run_row(RunView(record=record, satellites=(running, waiting)))
    assert list(format_satellite_lines([row])) == [
        "satellite job 8 of demo.0 is running: 1 replica more on n[3-4]",
        "satellite job 9 of demo.0 is pending: 2 replicas more",
    ]
    assert format_satellites_line(row.satellites) == "satellites: 8 running on n[3-4], 9 pending"
    assert run_row_to_json(row)["satellites"] == [
        {"job": "8", "state": "running", "replicas": 1, "nodes": ["n3", "n4"]},
        {"job": "9", "state": "pending", "replicas": 2, "nodes": []},
    ]


NODES = tuple(
    NodeGroup(partition=name, nodes=count, cpus=4, memory_mb=1000, gres={}, state="idle")
    for name, count in (("main", 3), ("main", 1), ("spot", 2))
)


@pytest.mark.parametrize(
    ("partition", "nodes", "said"),
    [
        ("main", 9, "takes 9 nodes more, and partition main has 4"),
        ("spot,main", 5, "partition spot,main has 4"),
        (None, 5, "the largest partition has 4"),
        ("main", 4, ""),
        (None, 2, ""),
    ],
)
def test_growth_beyond_the_cluster_is_refused(
    plan_of_one_job: Any, partition: str | None, nodes: int, said: str
) -> None:
    """A job that no partition can ever start is not submitted, as nobody would look at it."""
    (job,) = plan_of_one_job("/x", partition=partition, nodes=nodes).jobs
    check_enough_nodes(job.resources, ())
    if not said:
        check_enough_nodes(job.resources, NODES)
        return
    with pytest.raises(UsageError, match=said):
        check_enough_nodes(job.resources, NODES)


def test_refused_satellite_names_the_nodes_that_it_leaves_out(plan_of_one_job: Any) -> None:
    """Without this nothing seems to keep the job from them."""
    (job,) = plan_of_one_job("/x", exclude="n[1-2]").jobs
    said = add_excluded_nodes_hint(SchedulerRefusedError("refused", hint="compare"), job.resources)
    assert said.hint.startswith("it leaves out n[1-2], which the run has or excludes")
    assert said.hint.endswith("; compare")
