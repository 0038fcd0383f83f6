"""A launcher that is killed at any moment: `resume` loses no run and queues none twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_world import make_context
from tiers import thorough

from hpckit.cli.main import main
from hpckit.slurm.parse import parse_job_ids

pytestmark = pytest.mark.slow

RUNS = 6
WORDS = (
    *("launch", "-m", "experiment=command", "command=true", "cluster=slurm", "--no-check"),
    *("code.snapshot=false", "+resources.additional_parameters.hold=true"),
    f"+params.x=range(0,{RUNS})",
)
_PATIENCE_S = 60.0


@pytest.fixture
def environ(fake_slurm: Any) -> dict[str, str]:
    """Return the environment of a cluster that takes two runs an array."""
    return {**fake_slurm.environ, "FAKE_SLURM_MAX_ARRAY_SIZE": "2"}


def lines(folder: Path) -> int:
    """Return how many events the launch has by now."""
    return sum(path.read_text().count("\n") for path in folder.glob("outputs/*/events/*.jsonl"))


def launch_and_kill(folder: Path, environ: dict[str, str], *, events: int, after_s: float) -> None:
    """Launch, and kill that a moment after so many events; an sbatch of its runs to its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hpckit", *WORDS],
        cwd=folder,
        env=environ,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + _PATIENCE_S
    while process.poll() is None and lines(folder) < events and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(after_s)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # What follows is two minutes later by the clock alone: by then, timeout(1) has ended sbatch.
    while sbatches(process.pid):
        time.sleep(0.02)


def sbatches(session: int) -> list[str]:
    """Return the processes of a session that submit a job."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                words = (folder / "cmdline").read_bytes().decode()
                found += [words] if "sbatch" in words else []
    return found


def resume_later(folder: Path, environ: dict[str, str]) -> int:
    """Resume two minutes later, when nothing can be under way any more."""
    context = make_context(folder, environ, now=lambda: datetime.now(UTC) + timedelta(minutes=2))
    return main(["resume"], context)


def queued_runs(fake_slurm: Any) -> Counter[str]:
    """Return how often each run is in the queue, by the name of its job and its element."""
    rows = fake_slurm.slurm("squeue", "--me", "--Format=Name:0|,JobArrayID:0|").split()
    found: Counter[str] = Counter()
    for row in rows:
        name, job, *_ = row.split("|")
        found.update(f"{name}:{one.partition('_')[2]}" for one in parse_job_ids(job))
    return found


@pytest.mark.parametrize(
    "events", [pytest.param(one, marks=thorough) if one in {1, 3, 5} else one for one in range(7)]
)
def test_launcher_killed_at_any_moment_loses_no_run_and_queues_none_twice(
    tmp_path: Path, fake_slurm: Any, environ: dict[str, str], events: int
) -> None:
    """Before, between and after its submissions: the queue holds each run once in the end."""
    folder = tmp_path / "project"
    folder.mkdir()
    delay = random.Random(events).uniform(0, 0.02)  # noqa: S311  # a moment, no secret
    launch_and_kill(folder, environ, events=events, after_s=delay)
    code = resume_later(folder, environ)
    found = queued_runs(fake_slurm)
    if not lines(folder) and not found:
        assert code == 2, "there was no launch yet"
        return
    assert code == 0
    assert sum(found.values()) == RUNS
    assert set(found.values()) == {1}


@pytest.mark.parametrize("events", [0, 1])
def test_interrupted_launcher_leaves_nothing_or_says_what_may_be_queued(
    tmp_path: Path, fake_slurm: Any, environ: dict[str, str], events: int
) -> None:
    """Ctrl-C never leaves a launch that waits for ever, without a word."""
    process = start_launch(tmp_path, environ)
    while not list(tmp_path.glob("outputs/[!.]*")) or lines(tmp_path) < events:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 130
    if "nothing was launched" in said:
        assert (list(tmp_path.glob("outputs/*")), sum(queued_runs(fake_slurm).values())) == ([], 0)
    else:
        assert "`hpckit doctor " in said
        (folder,) = tmp_path.glob("outputs/*")
        assert "intended" in "".join(path.read_text() for path in folder.glob("events/*.jsonl"))


def test_same_launch_by_many_at_once_runs_once(
    tmp_path: Path, fake_slurm: Any, environ: dict[str, str]
) -> None:
    """A retry and what it retries, or two jobs of cron: each returns 0, and each run is queued once."""
    project = tmp_path / "project"
    project.mkdir()
    processes = [start_launch(project, environ, "code.snapshot=true") for _ in range(3)]
    said = [process.communicate(timeout=_PATIENCE_S)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    found = queued_runs(fake_slurm)
    assert (sum(found.values()), len(list(project.glob("outputs/*")))) == (RUNS, 1)
    assert sum("not submitted again" in words for words in said) == 2


def start_launch(folder: Path, environ: dict[str, str], *more: str) -> subprocess.Popen[str]:
    """Start a launcher."""
    return subprocess.Popen(
        [sys.executable, "-m", "hpckit", *WORDS, *more],
        cwd=folder,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
