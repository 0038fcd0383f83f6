"""What it costs to look at a run that has logged ten million rows in a month, and to decide.

The files are written as a month of training leaves them, by the code that records real runs;
nothing trains.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.commands import hpckit, run
from hpckit.model import events
from hpckit.model.plain import to_plain
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, load_launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics.log import MetricsLog
from hpckit.record.store import append_event, make_private_folder, write_text_atomically

ROWS = int(os.environ.get("BENCH_ROWS", "10_000_000"))
SAVES = 30 * 24 * 60
"""A checkpoint a minute for a month."""

_CHUNK = 100_000
_CANCELLED = "from hpckit.record.launches import *; from pathlib import Path; import sys; "
_CANCELLED += "assert not is_cancelled(load_launch(Path(sys.argv[1])), 0)"


def bench_rows(folder: Path) -> None:
    """Measure a look, a decision, and rebuilding the last values: CPU time and peak memory."""
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(folder / "outputs")}
    words = hpckit("render", "cluster=local", "experiment=command", "command=true")
    run([*words, "code.snapshot=false"], env=environ, cwd=folder)
    (found,) = (folder / "outputs").iterdir()
    launch = load_launch(found)
    attempt = _month(launch)
    size = attempt.metrics.stat().st_size / 1e6
    print(f"{ROWS} rows ({size:.0f} MB), {SAVES} saves   CPU      most memory")
    _say("python -c pass", [sys.executable, "-c", "pass"], environ)
    _say("status", hpckit("status"), environ)
    _say("results", hpckit("results"), environ)
    _say("resume --dry-run (an auto-resume job's look)", hpckit("resume", "--dry-run"), environ, code=None)
    _say("is it cancelled? (a supervisor)", [sys.executable, "-c", _CANCELLED, str(found)], environ)
    attempt.last_metrics.unlink()
    _say("status, last values lost", hpckit("status"), environ)
    _say("status, after that", hpckit("status"), environ)


def _say(what: str, words: list[str], environ: dict[str, str], *, code: int | None = 0) -> None:
    process = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    took = used.ru_utime + used.ru_stime
    process.returncode = os.waitstatus_to_exitcode(status)
    if code is not None and process.returncode != code:
        sys.exit(f"{words} exited {process.returncode}")
    print(f"{what:36} {took:6.2f} s   {used.ru_maxrss / 1024:6.0f} MB", flush=True)


def _month(launch: Launch) -> AttemptPaths:
    """Write an attempt of a month that was interrupted just now."""
    paths = launch.paths.run(0).attempt(1)
    make_private_folder(paths.folder)
    now = datetime.now(UTC)
    at = now - timedelta(days=30)
    begun = events.AttemptStarted(at=at, attempt=1, job=None, restart_count=0, host="n1", pid=2, started="1")
    append_event(paths.events, begun)
    append_event(paths.events, events.RoundStarted(at=at, round=0, world_size=1, nodes=("n1",)))
    append_event(paths.events, events.StepReached(at=at, round=0, step=0))
    for minute in range(SAVES):
        saved = events.CheckpointSaved(
            at=at + timedelta(minutes=minute),
            round=0,
            step=minute * (ROWS // SAVES),
            size=1 << 30,
            stall_s=0.1,
            duration_s=20.0,
        )
        append_event(paths.events, saved)
    _log(paths, to_plain(at))
    append_event(paths.events, events.AttemptEnded(at=now, state=RunState.interrupted, exit_code=143))
    write_text_atomically(paths.progress, f'{{"round":0,"step":{ROWS},"at":"{to_plain(now)}"}}')
    return paths


def _log(paths: AttemptPaths, at: str) -> None:
    """Write rows as a rank does, the last of them with the rank's own code."""
    with paths.metrics.open("w", encoding="utf-8") as file:
        for first in range(0, ROWS - 1, _CHUNK):
            steps = range(first, min(first + _CHUNK, ROWS - 1))
            rows = ({"step": step, "at": at, "loss": 1 / (step + 1), "lr": 3e-4} for step in steps)
            file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    values = {name: {"value": 0.5, "step": 0, "at": at} for name in ("loss", "lr", "val_acc")}
    last = {"v": 1, "size": paths.metrics.stat().st_size, "values": values}
    write_text_atomically(paths.last_metrics, json.dumps(last))
    MetricsLog(paths=paths).append_rows({"step": ROWS, "at": at, "loss": 0.25, "lr": 3e-4})
