"""Reports stay small, whatever a run has logged."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from cli_world import START, Desk, Writer
from report_launches import gathered
from tiers import thorough

from hpckit.model import events

pytestmark = pytest.mark.whole


def test_report_of_many_metrics_is_no_larger_than_of_one(desk: Desk) -> None:
    """Twelve runs with twelve long curves each, on two time axes."""
    launch = desk.freeze("wide", sweep=[(f"a={number}",) for number in range(12)])
    for index in range(12):
        writer = Writer(launch=launch, index=index)
        writer.start()
        writer.tell(events.StepReached(at=START, round=0, step=0))
        paths = launch.paths.run(index).attempt(1)
        lines = [
            {
                "at": (START + timedelta(seconds=step)).isoformat(),
                "round": 0,
                "step": step,
                **{f"m{name}": ((step * 7919 + name * 104_729) % 1000) / 7 for name in range(12)},
            }
            for step in range(600)
        ]
        paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = gathered(desk, launch)
    curves = [run.live for metric in document.curves for run in metric.runs]
    assert len(curves) == 144
    assert all(curve.wall_s for curve in curves)
    assert sum(len(curve.steps) for curve in curves) <= 26_000


def test_report_of_many_restarts_is_no_larger_than_of_few(desk: Desk) -> None:
    """What forty restarts have undone of a curve has as many columns as the curve."""
    launch = desk.freeze("wide", sweep=[(f"a={number}",) for number in range(4)])
    for index in range(4):
        writer = Writer(launch=launch, index=index)
        writer.start()
        lines = []
        for again in range(40):
            writer.tell(events.StepReached(at=START, round=again, step=20 * again))
            for step in range(20 * again, 20 * again + 100):
                row = {"at": START.isoformat(), "round": again, "step": step}
                lines.append(row | {f"m{name}": (step * 7919 + name) % 997 for name in range(12)})
        paths = launch.paths.run(index).attempt(1)
        paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curves = [run for metric in gathered(desk, launch).curves for run in metric.runs]
    assert len(curves) == 48
    assert all(len(run.undone) == 39 for run in curves)
    assert sum(len(piece.steps) for run in curves for piece in run.undone) <= 36_000


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "metrics"), [(434, 12), (3, 200)])
@thorough
def test_report_of_a_thousand_runs_is_below_eight_megabytes_whatever_they_log(
    desk: Desk, rows: int, metrics: int
) -> None:
    """Neither long curves nor many metrics make it larger, and it says what it leaves out.

    Twelve runs have curves of their own; most of the others are short, as is the time of this test.
    """
    pytest.importorskip("plotly")
    launch = desk.freeze("wide", sweep=[(f"a={number}",) for number in range(1000)])
    for index in range(1000):
        Writer(launch=launch, index=index).start()
        lines = (
            {
                "at": (START + timedelta(seconds=step)).isoformat(),
                "step": step,
                **{f"metric_{name}": (step * 7919 + name + index) / 7 for name in range(metrics)},
            }
            for step in range(rows if index < 60 else min(rows, 40))
        )
        paths = launch.paths.run(index).attempt(1)
        paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert desk.say("report", launch.id, "-o", "big.html").code == 0
    text = (desk.folder / "big.html").read_bytes()
    assert len(text) < 8_000_000
    assert (b"184 more metrics not in this table" in text) is (metrics == 200)
