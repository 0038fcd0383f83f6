"""Promises about tables on a terminal: what is copied from them stays whole."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hpckit.model.failure import Cause, Failure
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.states import RunState, parse_slurm_state
from hpckit.report.drawing import render_page_for_rich
from hpckit.report.results import build_results
from hpckit.report.rows import LaunchHead, build_run_row
from hpckit.report.selection import LaunchLine
from hpckit.report.text import (
    Page,
    TextTable,
    format_launch_head,
    render_launches_page,
    render_results_page,
    render_status_page,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
IDS = [f"{name}-20260101-00000{n}-de6e9f" for n, name in enumerate(("fifty", "python", "charlm"))]


def shown(page: Page, width: int) -> str:
    """Return what a terminal of this width shows."""
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(render_page_for_rich(page))
    return out.getvalue()


def launches() -> Page:
    """Return the page of `ls`, in a folder with a long path."""
    folder = "/shared/projects/of/a/large/group/somebody/outputs"
    heads = [
        LaunchHead(id=one, name=one.split("-")[0], folder=f"{folder}/{one}", created_at=START) for one in IDS
    ]
    counts = {RunState.failed: 3, RunState.completed: 37}
    return render_launches_page([LaunchLine(head=head, counts=counts) for head in heads])


def results(metrics: int) -> Page:
    """Return the page of `results` of several launches."""
    values = {f"metric_{number}": 1 / 3 for number in range(metrics)}
    records = [
        RunRecord(
            id=f"{one}.{index}",
            index=index,
            overrides=(f"lr={index}", f"decay={index}"),
            folder="/x",
            state=RunState.completed,
            attempt=1,
            started_at=START,
            ended_at=START + timedelta(hours=1),
            metrics=values,
        )
        for index, one in enumerate(IDS)
    ]
    rows = [build_run_row(RunView(record=record)) for record in records]
    return render_results_page(build_results(rows, START, spans=True))


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("page", [launches(), results(3), results(12)])
def test_drawn_tables_keep_ids_whole(page: Page, width: int) -> None:
    """Whatever gives way at this width, each launch's id stands in one piece in one line."""
    text = shown(page, width)
    assert all(any(line.startswith(one) for line in text.splitlines()) for one in IDS), text
    assert all(len(line) <= width for line in text.splitlines())


def test_drawn_tables_say_what_there_was_no_room_for() -> None:
    """At 60 columns the list of launches leaves one column out, and says so; not at 80."""
    assert "no room here for: created" in shown(launches(), 60)
    assert re.search(r"3 failed, 37 completed", shown(launches(), 60))
    assert "no room here" not in shown(launches(), 80)


def test_drawn_results_keep_overrides_and_the_first_metric() -> None:
    """What a sweep is about stays; times and further metrics give way first."""
    header = shown(results(12), 80).splitlines()[0].split()
    assert {"lr", "decay", "metric_0"} <= set(header)
    assert "metric_9" not in header


def status(metrics: int) -> Page:
    """Return the page of `status` of two runs that did not end well."""
    failure = Failure(cause=Cause.launcher_lost, message="gone", node="n1", signature="gone")
    records = [
        RunRecord(
            id=f"{IDS[0]}.{index}",
            index=index,
            overrides=(f"optimizer.learning_rate={index}", "seed=1"),
            folder="/x",
            job=f"12345678_{index}",
            state=RunState.interrupted,
            attempt=2,
            step=3,
            total=1000,
            nodes=tuple(f"node-{number}" for number in range(40, 80, 3)),
            failure=failure,
            started_at=START,
            ended_at=START + timedelta(hours=30),
            metrics={f"metric_{number}": 1 / 3 for number in range(metrics)},
        )
        for index in range(2)
    ]
    seen = parse_slurm_state("NODE_FAIL")
    rows = [
        build_run_row(RunView(record=record, observation=Observation(job="1", state=seen, seen_at=START)))
        for record in records
    ]
    head = LaunchHead(id=IDS[0], name="fifty", folder="/x", created_at=START)
    return render_status_page(replace(head, common=frozenset({"seed=1"})), rows, START)


@pytest.mark.parametrize("width", [70, 80, 120])
@pytest.mark.parametrize("metrics", [0, 3])
def test_drawn_status_keeps_each_run_in_one_line(metrics: int, width: int) -> None:
    """Jobs, what differs, state and cause stay; what gave way is named."""
    lines = shown(status(metrics), width).splitlines()
    header = lines[2].split()
    assert {"run", "overrides", "state", "cause", "job"} <= set(header)
    for index, line in enumerate(lines[3:5]):
        words = line.split()
        assert words[0] == str(index)
        assert {"interrupted", "launcher_lost", f"12345678_{index}"} <= set(words)
    if width < 120:
        assert "no room here for: nodes" in lines[5]
    assert all(len(line) <= width for line in lines)
    assert f"  whole log: hpckit logs {IDS[0]}.0" in lines


def test_drawn_columns_are_cut_before_more_than_one_is_left_out() -> None:
    """What matters least goes first; then cells that may be cut are, with a sign; then the rest."""
    sheet = TextTable(
        header=("run", "words", "last", "least"),
        rows=(("0", "a" * 40, "x", "y"),),
        spare=("least", "last"),
        flexible=("words",),
    )
    assert shown([sheet], 80).splitlines()[1].split() == ["0", "a" * 40, "x", "y"]
    assert shown([sheet], 51).splitlines()[1].split() == ["0", "a" * 40, "x"]
    assert shown([sheet], 30).splitlines()[1].split() == ["0", "a" * 18 + "…", "x"]
    assert shown([sheet], 18).splitlines()[1].split() == ["0", "a" * 12 + "…"]
    assert "no room here for: least, last" in " ".join(shown([sheet], 18).split())


@given(length=st.integers(1, 40), age=st.timedeltas(timedelta(0), timedelta(days=999)))
def test_head_line_fits_eighty_columns(length: int, age: timedelta) -> None:
    """Id and age stand in a line of their own, which no usual name makes longer than 80."""
    name = "x" * length
    head = LaunchHead(id=f"{name}-20260101-000000-de6e9f", name=name, folder="/x", created_at=START)
    assert len(format_launch_head(head, START + age).splitlines()[0]) <= 80
