"""Promises of runtime.children: notices are for ranks, not for their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import LIMIT_S

from hpckit.model.launch import Resources

RANK = """
import multiprocessing, os, signal, subprocess, sys, threading, time
from hpckit.runtime.rank.child_signals import ignore_signal, shield_children_from_signals

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # at once: processes share it

def idle(*_):
    say("child", os.getpid())
    time.sleep(600)

def last_words(*_):
    signal.signal(signal.SIGTERM, lambda *_: (say("goodbye"), sys.exit(0)))
    idle()

def with_grandchild(*_):
    inner = fork.Process(target=idle)
    inner.start()
    inner.join()
    say("grandchild ended", inner.exitcode)

def with_program(*_):
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    say("program ended", program.wait())

def with_fork(*_):
    if not (pid := os.fork()):
        time.sleep(600)
    os.kill(pid, signal.SIGTERM)
    say("fork ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

def self_signal(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)

def run(target):
    process = fork.Process(target=target)
    process.start()
    return process

def run_in_thread(target):
    thread = threading.Thread(target=lambda: box.append(run(target)))
    thread.start()
    thread.join()
    return box.pop()

box = []
fork = multiprocessing.get_context("fork")
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, ignore_signal)  # what ranks do in their step loop
shield_children_from_signals()
"""
TERMINATE = "sys.stdin.readline(); process.terminate(); process.join(); say(process.exitcode)"
LOADER = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from hpckit import attach

class Numbers(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return index

if __name__ == "__main__":
    torch.set_num_threads(1)
    run = attach()
    loader = DataLoader(
        Numbers(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1]
    )
    batches = iter(loader)
    try:
        for step in run.steps(50_000):
            batch = next(batches)
            print("step", step, batch.tolist() == [2 * step, 2 * step + 1], flush=True)
    finally:
        print("left", flush=True)
        workers = batches._workers
        del batches
        print("workers", [worker.exitcode for worker in workers], flush=True)
"""
SPAWNING = """
import multiprocessing, os, time
from pathlib import Path

def idle(folder):
    (folder / "idle.tmp").write_text(str(os.getpid()))
    (folder / "idle.tmp").rename(folder / "idle")
    time.sleep(600)

def main(config, run):
    folder = Path(config.params.folder)
    process = multiprocessing.get_context("spawn").Process(target=idle, args=(folder,))
    process.start()
    while not (folder / "end").exists():
        assert process.is_alive(), process.exitcode
        time.sleep(0.02)
    process.terminate()
    process.join()
    print("ended with", process.exitcode)
"""


class Rank:
    """A process with a process group of its own, as an agent starts ranks; we are outside."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        """Return the next line it prints; an error where it ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, self.process.communicate()[1]
        return line

    def go_on(self) -> None:
        """Let it go on from where it reads a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def family(self) -> list[int]:
        """Return all processes of its group, itself among them."""
        return [int(one.name) for one in Path("/proc").glob("[0-9]*") if self._has(int(one.name))]

    def _has(self, pid: int) -> bool:
        try:
            return os.getpgid(pid) == self.process.pid
        except ProcessLookupError:
            return False


@pytest.fixture
def start() -> Iterator[Callable[..., Rank]]:
    """Return a starter of processes that end with the test, children included."""
    started: list[Rank] = []

    def begin(*words: str) -> Rank:
        started.append(Rank(*words))
        return started[-1]

    yield begin
    for rank in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.process.pid, signal.SIGKILL)
        rank.process.communicate()


def notify(*pids: int) -> None:
    """Tell these processes everything that Slurm does, and give it time to act."""
    for pid in pids:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    time.sleep(0.3)


@pytest.mark.parametrize(
    ("begin", "code"),
    [
        ("process = run(idle)", -signal.SIGTERM),
        ("process = run(last_words)", 0),
        ("process = run_in_thread(idle)", -signal.SIGTERM),
    ],
    ids=["by default", "with a handler", "from a thread that ended"],
)
def test_children_outlive_a_notice_and_obey_their_parent(
    start: Callable[..., Rank], begin: str, code: int
) -> None:
    """A notice from outside does nothing to a child; its parent ends it as it always could."""
    rank = start("-c", f"{RANK}\n{begin}\n{TERMINATE}")
    notify(int(rank.line().removeprefix("child ")))
    rank.go_on()
    if code == 0:
        assert rank.line() == "goodbye"
    assert rank.line() == str(code)
    assert rank.process.wait(timeout=LIMIT_S) == 0
    assert rank.family() == []


def test_pool_outlives_a_notice_and_can_be_terminated(start: Callable[..., Rank]) -> None:
    """The workers of a pool are shielded, and `Pool.terminate()` ends them at work."""
    rank = start(
        "-c",
        f"{RANK}\npool = fork.Pool(2)\nresult = pool.map_async(idle, range(2), chunksize=1)\n"
        "sys.stdin.readline(); pool.terminate(); pool.join(); say('joined')",
    )
    workers = [int(rank.line().removeprefix("child ")) for _ in range(2)]
    notify(*workers)
    assert set(workers) <= set(rank.family())
    rank.go_on()
    assert rank.line() == "joined"
    assert rank.process.wait(timeout=LIMIT_S) == 0
    assert rank.family() == []


def test_grandchildren_outlive_a_notice(start: Callable[..., Rank]) -> None:
    """A child's own child is shielded as well, and its family can end it."""
    rank = start(
        "-c",
        f"{RANK}\nprocess = run(with_grandchild)\npid = int(sys.stdin.readline())\n"
        "os.kill(pid, signal.SIGTERM); process.join()",
    )
    grandchild = int(rank.line().removeprefix("child "))
    notify(*(pid for pid in rank.family() if pid != rank.process.pid))
    assert grandchild in rank.family()
    assert rank.process.stdin is not None
    rank.process.stdin.write(str(grandchild))
    rank.go_on()
    assert rank.line() == f"grandchild ended {-signal.SIGTERM}"
    assert rank.process.wait(timeout=LIMIT_S) == 0


@pytest.mark.parametrize(("target", "said"), [("with_program", "program ended"), ("with_fork", "fork ended")])
def test_what_children_start_by_themselves_can_be_ended(
    start: Callable[..., Rank], target: str, said: str
) -> None:
    """A program or a plain fork of a child dies of SIGTERM, as anywhere."""
    rank = start("-c", f"{RANK}\nrun({target}).join()")
    assert rank.line() == f"{said} {-signal.SIGTERM}"


def test_child_may_signal_itself(start: Callable[..., Rank]) -> None:
    """What a child sends itself has its effect."""
    rank = start("-c", f"{RANK}\nprocess = run(self_signal); process.join(); say(process.exitcode)")
    assert rank.line() == str(-signal.SIGTERM)


def test_run_without_supervisor_obeys_everybody(start: Callable[..., Rank]) -> None:
    """Once its parent is gone, a child can be ended from outside."""
    rank = start("-c", f"{RANK}\nprocess = run(idle); process.join()")
    child = int(rank.line().removeprefix("child "))
    rank.process.kill()
    rank.process.wait()
    notify_until_gone(rank, child)
    assert rank.family() == []


def notify_until_gone(rank: Rank, pid: int) -> None:
    """Send SIGTERM once, and wait for as long as the test may take."""
    os.kill(pid, signal.SIGTERM)
    while pid in rank.family():
        time.sleep(0.02)


@pytest.mark.training
@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=thorough)])
def test_data_loader_goes_on_to_the_boundary(start: Callable[..., Rank], tmp_path: Path, method: str) -> None:
    """A notice to workers alone changes nothing; one to all lets the rank leave at a boundary.

    No batch is lost, the loader ends its workers as always, and nothing of them is left.
    """
    script = tmp_path / "train.py"
    script.write_text(LOADER)
    rank = start(str(script), method)
    while rank.line() != "step 5 True":
        pass
    notify(*(pid for pid in rank.family() if pid != rank.process.pid and not is_tracker(pid)))
    for step in range(6, 100):
        assert rank.line() == f"step {step} True"
    for pid in rank.family():
        os.kill(pid, signal.SIGTERM)
    lines = [rank.line()]
    while not lines[-1].startswith("workers"):
        lines.append(rank.line())
    assert lines[-2:] == ["left", "workers [0, 0]"]
    assert all(line.endswith("True") for line in lines[:-2])
    _, errors = rank.process.communicate(timeout=LIMIT_S)
    assert "Traceback" not in errors
    assert "killed by signal" not in errors
    until_gone(rank)


def is_tracker(pid: int) -> bool:
    """Whether this is multiprocessing's own resource tracker: SIGUSR1 ends it, harmlessly."""
    return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def until_gone(rank: Rank) -> None:
    """Wait until no process of the family is left (a forkserver ends after its clients)."""
    while rank.family():
        time.sleep(0.02)


@pytest.mark.training
def test_spawned_children_of_a_rank_outlive_a_notice(workshop: Any, tmp_path: Path) -> None:
    """A rank's spawned child is shielded, too, from before its target runs."""
    launch = workshop.freeze(
        SPAWNING, entry_point="task:main", params={"folder": str(tmp_path)}, resources=Resources()
    )
    supervisor = workshop.start(launch)
    while not (tmp_path / "idle").exists():
        assert supervisor.poll() is None
        time.sleep(0.05)
    notify(int((tmp_path / "idle").read_text()))
    (tmp_path / "end").touch()
    output, _ = supervisor.communicate(timeout=120)
    log = launch.paths.run(0).attempt(1).round(0).rank_log(0).read_text()
    assert supervisor.returncode == 0, output + log
    assert log.splitlines()[-1] == f"ended with {-signal.SIGTERM}"
