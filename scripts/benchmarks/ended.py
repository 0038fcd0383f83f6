"""How long `status`, `ls` and `results` take to show ten thousand ended runs.

The launch is written by the code that freezes and records real ones; nothing runs.
"""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.commands import hpckit, run
from hpckit.model import events
from hpckit.model.plain import to_plain
from hpckit.model.states import RoundAction, RunState
from hpckit.record.launches import Launch, load_launch
from hpckit.record.store import append_event, append_json_lines, make_private_folder, write_text_atomically

RUNS = 10_000
LOOKS = (("status",), ("status", "--json"), ("ls",), ("results",), ("results", "--json"))


def bench_ended(folder: Path) -> None:
    """Compare the first look at them, without an index, with later ones."""
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(folder / "outputs")}
    words = hpckit("render", "-m", "cluster=local", "experiment=command", "command=true")
    run([*words, f"+x=range(0,{RUNS})", "code.snapshot=false"], env=environ, cwd=folder)
    (found,) = (folder / "outputs").iterdir()
    launch = load_launch(found)
    for index in range(RUNS):
        _end(launch, index)
    index_folder = launch.paths.cache_file("runs").parent
    run(hpckit("ls"), env=environ)
    print(f"{RUNS} runs        files   index   CPU     ratio")
    for look in LOOKS:
        shutil.rmtree(index_folder)
        files, _ = _took(look, environ)
        _took(look, environ)
        warm, cpu = min(_took(look, environ) for _ in range(3))
        name = " ".join(look)
        print(f"{name:15} {files:6.2f} s {warm:6.2f} s {cpu:5.2f} s {files / warm:5.1f}", flush=True)


def _took(look: tuple[str, ...], environ: dict[str, str]) -> tuple[float, float]:
    """Return the wall time and the CPU time of a verb, in seconds."""
    began, before = time.perf_counter(), os.times()
    run(hpckit(*look), env=environ)
    after = os.times()
    cpu = after.children_user + after.children_system
    return time.perf_counter() - began, cpu - before.children_user - before.children_system


def _end(launch: Launch, index: int) -> None:
    """Write an attempt that completed five hours ago."""
    paths = launch.paths.run(index).attempt(1)
    make_private_folder(paths.folder)
    at = datetime.now(UTC) - timedelta(hours=5)
    second = timedelta(seconds=1)
    for event in (
        events.AttemptStarted(
            at=at, attempt=1, job=None, restart_count=0, host="n1", pid=index + 2, started="1"
        ),
        events.AgentJoined(at=at + second, node="n1", node_rank=0, pid=index + 3),
        events.RoundStarted(at=at + 2 * second, round=0, world_size=1, nodes=("n1",)),
        events.StepReached(at=at + 3 * second, round=0, step=0),
        events.RoundEnded(
            at=at + 99 * second, round=0, first_step=0, step=9, action=RoundAction.completed, failure=None
        ),
        events.AttemptEnded(at=at + 100 * second, state=RunState.completed, exit_code=0, failure=None),
    ):
        append_event(paths.events, event)
    for step in range(10):
        append_json_lines(paths.metrics, {"step": step, "at": to_plain(at), "loss": 1 / (step + 1)})
    write_text_atomically(paths.progress, f'{{"round":0,"step":9,"at":"{to_plain(at)}"}}', lasting=False)
