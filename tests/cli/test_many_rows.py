"""Verbs beside long metrics: what they show is small, and so is what they read."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_world import Desk, Writer

from hpckit.errors import HpckitError
from hpckit.record.launches import Launch, is_cancel_requested
from hpckit.record.metrics.log import MetricsLog

TERABYTE = 1 << 40
"""Of rows that no memory holds and no test could wait for."""


def fill(path: Path) -> int:
    """Make a file of a terabyte that ends with a line's end; returns its size."""
    with path.open("ab") as file:
        file.truncate(TERABYTE)
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    return path.stat().st_size


@pytest.fixture
def long_run(desk: Any, writer: Any) -> Launch:
    """Return a launch whose run, interrupted by now, has logged a terabyte."""
    launch: Launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    MetricsLog(paths=launch.paths.run(0).attempt(1)).append_rows({"step": 3, "at": "", "loss": 0.5})
    attempt.interrupt()
    fill(launch.paths.run(0).attempt(1).metrics)
    return launch


def test_verbs_that_show_read_last_values_only(desk: Any, long_run: Launch) -> None:
    """`status`, `ls` and `results` of a terabyte of rows show the last values at once."""
    small = long_run.paths.run(0).attempt(1).last_metrics
    record = json.loads(small.read_text())
    record["size"] = long_run.paths.run(0).attempt(1).metrics.stat().st_size
    small.write_text(json.dumps(record))
    (run,) = json.loads(desk.say("status", "--json").out)["runs"]
    assert run["metrics"] == {"loss": 0.5}
    (run,) = json.loads(desk.say("results", "--json").out)["runs"]
    assert run["metrics"] == {"loss": 0.5}
    assert "0.5" in desk.say("ls", "--sort", "loss").out


@pytest.mark.parametrize("words", [("logs",), ("resume", "--dry-run"), ("cancel",)])
def test_other_verbs_read_no_rows(desk: Any, long_run: Launch, words: tuple[str, ...]) -> None:
    """Without a file of last values, what shows no metrics does not miss it."""
    long_run.paths.run(0).attempt(1).last_metrics.unlink()
    try:
        desk.say(*words)
    except HpckitError as error:
        assert "memory" not in error.message  # noqa: PT017  # most have nothing to do here
    assert not is_cancel_requested(long_run, 0)


def test_metrics_of_earlier_attempts_count(desk: Any, writer: Any) -> None:
    """What an attempt logged before it was requeued is still a result: shown, sorted, exported."""
    launch = desk.freeze(sweep=[("+lr=1",), ("+lr=2",)])
    for index, accuracy in ((0, 0.93), (1, 0.98)):
        first = writer(launch=launch, index=index)
        first.start()
        first.metrics(5, val_acc=accuracy, loss=0.5)
        first.interrupt()
        second = writer(launch=launch, index=index, attempt=2)
        second.start()
        second.metrics(30, loss=0.25)
        second.complete()
    runs = json.loads(desk.say("status", "--json", "--sort", "-val_acc").out)["runs"]
    assert [(run["index"], run["metrics"]) for run in runs] == [
        (1, {"val_acc": 0.98, "loss": 0.25}),
        (0, {"val_acc": 0.93, "loss": 0.25}),
    ]
    rows = list(csv.DictReader(io.StringIO(desk.say("results", "--csv").out)))
    assert [(row["val_acc"], row["loss"]) for row in rows] == [("0.93", "0.25"), ("0.98", "0.25")]


def test_names_of_metrics_are_short_for_people(desk: Desk) -> None:
    """`status` and `results` stay readable whatever a key is; JSON has it whole."""
    launch = desk.freeze()
    writer = Writer(launch=launch)
    writer.start()
    writer.metrics(0, **{"k" * 5000: 1})
    for verb in ("status", "results"):
        lines = desk.say(verb, launch.id).out.splitlines()
        assert max(map(len, lines)) < 400
    assert "k" * 5000 in desk.say("status", launch.id, "--json").out
