"""What a real terminal of 80 columns shows: ids whole, local time, the headers of a pipe."""

from __future__ import annotations

from typing import Any

import pytest
from pseudo_terminal import Sitting

pytestmark = pytest.mark.slow

NAME = "a-name-of-nearly-the-length-that-may-be"
METRICS = {"train_loss": 0.123456, "validation_loss": 0.234567, "validation_accuracy": 0.9}


@pytest.fixture
def swept(desk: Any, writer: Any) -> Any:
    """Return a desk with two launches of long names, and runs that differ in long overrides."""
    words = "optimizer.learning_rate_schedule.warmup_steps="
    for minute in range(2):
        launch = desk.freeze(NAME, sweep=[(f"{words}{n}",) for n in range(3)], minute=minute)
        for index in range(3):
            attempt = writer(launch=launch, index=index)
            attempt.start(job=f"12345678_{index}")
            attempt.metrics(10, **METRICS)
            attempt.fail() if index else attempt.complete()
    desk.environ = {"PATH": "/usr/bin:/bin", "TZ": "Europe/Berlin", "HOME": str(desk.folder)}
    return desk


def screen(desk: Any, *words: str) -> list[str]:
    """Return the lines that a terminal of 80 columns shows, without colours."""
    environ = {**desk.environ, "HPCKIT_OUTPUTS": str(desk.folder), "NO_COLOR": "1", "PAGER": "cat"}
    with Sitting(words=words, cwd=desk.folder, environ=environ) as person:
        assert person.exit_code() == 0, person.said
    plain = person.said.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
    return [line.rstrip() for line in plain.replace("\r", "").splitlines()]


def test_ls_keeps_ids_whole(swept: Any) -> None:
    """Two launches are two lines, which begin with the id; what gave way is named."""
    lines = screen(swept, "ls", NAME)
    ids = [folder.name for folder in sorted(swept.folder.iterdir(), reverse=True)]
    assert lines[0].split() == ["launch", "runs"]
    assert [line.split()[0] for line in lines if NAME in line] == ids
    assert "no room here for: created (--json has all)" in lines


def test_ls_has_local_times_with_their_zone(swept: Any) -> None:
    """The id has the moment in UTC, as JSON has; the column is for people."""
    swept.freeze("short", minute=5)
    text = " ".join(screen(swept, "ls", "short"))
    assert "short-20260101-000500-ab12" in text
    assert "2026-01-01 01:05:00 CET" in text


def test_status_keeps_each_run_in_one_line(swept: Any) -> None:
    """The head fits, jobs and the value that differs stay, and a pipe has the same headers."""
    launch = f"{NAME}-20260101-000100-ab12"
    lines = screen(swept, "status", launch)
    assert lines[:2] == [launch, "created " + lines[1].removeprefix("created ")]
    header = next(line for line in lines if line.startswith("run "))
    piped = next(line for line in swept.say("status", launch).out.splitlines() if line.startswith("run "))
    assert set(header.split()) <= set(piped.split())
    assert {"overrides", "state", "cause", "job", "steps"} <= set(header.split())
    rows = [line for line in lines if line[:3] in {"0  ", "1  ", "2  "}]
    assert len(rows) == 3
    assert all(f"12345678_{index}" in row for index, row in enumerate(rows))
    assert "  warmup_steps=1  " in rows[1]
    assert f"  whole log: hpckit logs {launch}.1" in lines


def test_results_of_several_launches_keep_ids_whole(swept: Any) -> None:
    """Overrides and a metric have columns; others give way, and all that did are named."""
    short = swept.freeze("short", sweep=[("lr=1",), ("lr=2",)], minute=5, seed=5)
    other = swept.freeze("other", sweep=[("lr=3",), ("lr=4",)], minute=6, seed=6)
    lines = screen(swept, "results", short.id, other.id)
    rows = [line.split()[:4] for line in lines if line.startswith(("short", "other"))]
    expected = zip((short, short, other, other), "0101", "1234", strict=True)
    assert rows == [[launch.id, index, lr, "pending"] for launch, index, lr in expected]
    long = f"{NAME}-20260101-000100-ab12"
    lines = screen(swept, "results", short.id, long)
    assert [line.split()[0] for line in lines if line.startswith(NAME)] == [long] * 3
    left_out = " ".join(lines).partition("no room here for: ")[2]
    assert "time" in left_out
    assert "train_loss" in left_out
