"""What stands still for a while: file systems, all processes together, the supervisor alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime.conftest import Workshop, ranks

from hpckit.model.events import AgentJoined, NodeLost, RoundEnded, RoundStarted
from hpckit.model.failure import Cause
from hpckit.model.launch import Recovery, Runtime
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, read_run_records
from hpckit.record.store import read_events

pytestmark = pytest.mark.training

IMPATIENT = Runtime(node_timeout_s=2, stop_grace_s=2, rendezvous_timeout_s=30)
"""An agent gives a silent supervisor up after ten seconds."""
FROZEN_S = 15.0

LOOP = """
import time
def main(config, run):
    for step in run.steps(220):
        if step == 5:
            print("stepping", flush=True)
        time.sleep(0.1)
    print("the loop ended", step)
"""
"""Touches no file while it loops."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of its own that can be frozen; as root only."""
    image, mount = tmp_path / "disk.img", tmp_path / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    commands = (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mount)])
    for words in commands:
        if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("this machine lets nobody mount a file system here")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def begun(launch: Launch, process: subprocess.Popen[str]) -> None:
    """Wait until the rank steps."""
    deadline = time.monotonic() + 90
    log = launch.paths.run(0).attempt(1).round(0).rank_log(0)
    while not (log.exists() and "stepping" in log.read_text()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def told(launch: Launch, kind: type[Any]) -> list[Any]:
    """Return the events of one kind."""
    history = read_events(launch.paths.run(0).attempt(1).events)
    return [event for event in history if isinstance(event, kind)]


def completed_undisturbed(launch: Launch, process: subprocess.Popen[str]) -> None:
    """Assert that the run came to its end in the one round that it began with."""
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    (record,) = read_run_records(launch)
    assert (record.state, record.step) == (RunState.completed, 219)
    assert len(told(launch, RoundStarted)) == 1
    assert told(launch, NodeLost) == []
    assert "the loop ended 219" in launch.paths.run(0).attempt(1).round(0).rank_log(0).read_text()


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for parent in found:
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, file.read_text().split())
    return found


def stopped(pids: list[int], pause_s: float) -> None:
    """Stop processes for a while."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(pause_s)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def test_frozen_file_system_ends_no_training(disk: Path) -> None:
    """A file system that stands still for longer than anybody's patience costs not even a round."""
    workshop = Workshop(disk / "project")
    launch = workshop.freeze(LOOP, **ranks(1, runtime=IMPATIENT))
    process = workshop.start(launch)
    begun(launch, process)
    subprocess.run(["fsfreeze", "--freeze", str(disk)], check=True)
    try:
        time.sleep(FROZEN_S)
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(disk)], check=True)
    completed_undisturbed(launch, process)


def test_processes_that_were_stopped_together_go_on_together(tmp_path: Path) -> None:
    """As `scontrol suspend` and `resume` do: a silence that the listener slept through is none."""
    workshop = Workshop(tmp_path / "project")
    launch = workshop.freeze(LOOP, **ranks(1, runtime=IMPATIENT))
    process = workshop.start(launch)
    begun(launch, process)
    stopped(tree(process.pid), FROZEN_S)
    completed_undisturbed(launch, process)


def test_supervisor_that_was_frozen_alone_blames_no_node(tmp_path: Path) -> None:
    """Its agents leave; when it wakes it says what happened, and starts them again."""
    workshop = Workshop(tmp_path / "project")
    recovery = Recovery(restarts={"launcher_lost": 1})
    launch = workshop.freeze(LOOP, **ranks(1, runtime=IMPATIENT, recovery=recovery))
    process = workshop.start(launch)
    begun(launch, process)
    stopped([process.pid], FROZEN_S)
    completed_in_a_second_round(launch, process, "the supervisor was held up for ")


def completed_in_a_second_round(launch: Launch, process: subprocess.Popen[str], because: str) -> None:
    """Assert that only agents were lost, and that it cost a round."""
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    (record,) = read_run_records(launch)
    assert (record.state, record.attempt, record.round) == (RunState.completed, 1, 1)
    first, _ = told(launch, RoundEnded)
    assert first.failure.cause is Cause.launcher_lost
    assert first.failure.message.startswith(because)
    assert len(told(launch, AgentJoined)) == 2
    assert told(launch, NodeLost) == []


def test_agent_that_was_killed_costs_a_round_and_no_node(tmp_path: Path) -> None:
    """The node still speaks: an agent is started there again, in the same attempt."""
    workshop = Workshop(tmp_path / "project")
    recovery = Recovery(restarts={"launcher_lost": 1})
    quick = LOOP.replace("0.1", "0.02")
    launch = workshop.freeze(quick, **ranks(1, runtime=IMPATIENT, recovery=recovery))
    process = workshop.start(launch)
    begun(launch, process)
    (agent,) = told(launch, AgentJoined)
    os.kill(agent.pid, signal.SIGKILL)
    completed_in_a_second_round(launch, process, "the agent of ")


WATCHED = """
import asyncio, os, sys
LAUNCH, BEFORE = sys.argv[1], ("secret", "address.json", "configs", "code.json")

def watch(event, arguments):
    if event not in FILE_EVENTS or asyncio._get_running_loop() is None:
        return
    path = str(arguments[0])
    if path.startswith(LAUNCH) and not any(name in path for name in BEFORE):
        os.write(2, f"IN THE LOOP: {event} {path}\\n".encode())

FILE_EVENTS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.link"}
sys.addaudithook(watch)
from hpckit.cli.main import main
sys.exit(main(["supervise", LAUNCH, "--job", "0", "--run", "0"]))
"""
"""Tells of file operations in event loops, of the supervisor and of the agent it forks; what an
agent reads before it has called, and gives no sign of life, counts for nothing."""

FALLS_ONCE = """
import os, torch
def main(config, run):
    run.state(model=torch.nn.Linear(2, 2))
    for step in run.steps(20):
        run.log(loss=1.0)
        if step == 10 and run.round == 0:
            os.kill(os.getpid(), 9)
"""


def test_supervisor_and_agent_touch_no_file_in_their_loops(tmp_path: Path) -> None:
    """Their signs of life come from event loops that no file system can hold up."""
    workshop = Workshop(tmp_path / "project")
    recovery = Recovery(restarts={"signal": 1})
    launch = workshop.freeze(FALLS_ONCE, **ranks(1, recovery=recovery))
    words = [sys.executable, "-c", WATCHED, str(launch.folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert len(told(launch, RoundStarted)) == 2
    log = launch.paths.run(0).attempt(1).agents_log.read_text()
    found = [line for line in (done.stderr + log).splitlines() if "IN THE LOOP" in line]
    assert found == []
