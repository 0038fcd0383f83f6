"""A run's last save: it succeeds, or the run fails and says why; on a small disk of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runtime.conftest import Attempted, Workshop, ranks
from tiers import thorough
from waiting import until

from hpckit.model import events
from hpckit.model.failure import Cause
from hpckit.model.launch import Checkpoint, Runtime
from hpckit.model.states import RunState
from hpckit.record.store import read_events

pytestmark = [pytest.mark.training, pytest.mark.slow]

MOUNT = 'mount -t tmpfs -o size=4m tmpfs "$1" && shift && exec "$@"'

TRAIN = """
import pathlib, subprocess, threading, time, torch

def trouble(how, disk):
    if how == "read_only":
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        return
    filler = disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            for _ in range(16_384):  # 64 MiB, more than the disk has: another one must not fill up
                file.write(bytes(4096))
    except OSError:
        pass
    if how == "full_for_a_while":
        threading.Timer(3, filler.unlink).start()

def main(config, run):
    model = torch.nn.Linear(8, 8)
    run.state(model=model)
    for step in run.steps(8):
        if step == 5 and run.rank == 0:
            trouble(config.params["how"], pathlib.Path(config.params["disk"]))
        if step == 5:
            (run.folder / f"struck-{run.rank}").touch()
        if step == 6:
            time.sleep(config.params.get("pause", 0))
"""


@dataclass(frozen=True)
class SmallDisk:
    """A disk of 4 MiB, seen by the attempt alone, on which it keeps its checkpoints."""

    folder: Path

    def run(self, how: str, *, patience_s: float, notice: bool = False, **params: Any) -> Attempted:
        """Train eight steps on two ranks; trouble comes at step 5, after the save of step 3."""
        disk = self.folder / "disk"
        disk.mkdir()
        checkpoint = Checkpoint(dir=str(disk), interval_steps=3, patience_s=patience_s)
        params |= {"how": how, "disk": str(disk)}
        settings = ranks(2, checkpoint=checkpoint, params=params)
        settings["runtime"] = Runtime(stop_grace_s=2, rendezvous_timeout_s=60, notice_grace_s=20)
        launch = Workshop(self.folder / "project").freeze(TRAIN, **settings)
        words = [sys.executable, "-m", "hpckit", "supervise", str(launch.folder)]
        words = ["sh", "-c", MOUNT, "sh", str(disk), *words, "--job", "0", "--run", "0"]
        process = subprocess.Popen(["unshare", "-rm", *words])
        if notice:
            until((launch.paths.run(0).folder / "struck-1").exists)
            process.send_signal(signal.SIGTERM)
        return Attempted(code=process.wait(timeout=120), output="", launch=launch)


@pytest.fixture
def small_disk(tmp_path: Path) -> SmallDisk:
    """Return a small disk, where the system lets us mount one."""
    if shutil.which("unshare") is None or subprocess.call(["unshare", "-rm", "true"]):
        pytest.skip("a small disk needs unshare and user namespaces")
    return SmallDisk(tmp_path)


def test_last_save_on_a_full_disk_fails_the_run(small_disk: SmallDisk) -> None:
    """A run whose trained weights fit nowhere is never `completed`: it fails as `disk_full`."""
    ended = small_disk.run("full", patience_s=3)
    assert ended.code != 0
    assert ended.record.state is RunState.failed
    assert ended.record.failure is not None
    assert ended.record.failure.cause is Cause.disk_full
    assert "the last state, of step 8, could not be saved" in ended.record.failure.message
    for one in ended.exits():  # a rank that is slow to leave is ended with its peer
        assert one.exception == "FullDiskError" or one.stopped, "all ranks agree"


@thorough
def test_last_save_waits_for_room(small_disk: SmallDisk) -> None:
    """A disk that has room again within the patience costs nothing: the run completes, saved."""
    ended = small_disk.run("full_for_a_while", patience_s=60)
    assert (ended.code, ended.record.state) == (0, RunState.completed)
    told = read_events(ended.paths.events)
    assert 8 in {event.step for event in told if isinstance(event, events.CheckpointSaved)}


@thorough
def test_last_save_that_is_refused_fails_the_run(small_disk: SmallDisk) -> None:
    """Whatever else keeps the last state from the disk fails the run by a cause of its own."""
    ended = small_disk.run("read_only", patience_s=2)
    assert ended.code != 0
    assert ended.record.state is RunState.failed
    assert ended.record.failure is not None
    assert ended.record.failure.cause is Cause.unsaved
    assert "Read-only file system" in ended.record.failure.message


@thorough
def test_save_on_a_notice_that_fails_is_said(small_disk: SmallDisk) -> None:
    """Ranks that cannot save on a notice say so in time, and do not leave as if all were well."""
    ended = small_disk.run("full", patience_s=2, notice=True, pause=3)
    assert ended.code != 0
    assert ended.record.state is not RunState.completed
    assert {one.exception for one in ended.exits()} == {"FullDiskError"}
