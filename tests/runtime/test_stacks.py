"""Promises of the stack dump, on real child processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from hpckit.runtime.stacks import catches_dump_signal, collect_rank_stacks, describe_process_state

LONG = timedelta(seconds=20)
SHORT = timedelta(seconds=0.5)

HEAD = """
import ctypes, sys, threading, time
from pathlib import Path
from hpckit.runtime.stacks import enable_stack_dumps
enable_stack_dumps(Path(sys.argv[1]))
def ready():
    print("ready", flush=True)
"""
SLEEPS = """
def wait_for_batch():
    ready()
    while True:
        time.sleep(0.1)
wait_for_batch()
"""
HOLDS_THE_GIL = """
def in_c_code():
    ready()
    while True:
        ctypes.PyDLL(None).sleep(300)
in_c_code()
"""
SPINS_IN_C = """
def in_c_loop():
    ready()
    sum(range(10**13))
in_c_loop()
"""
TWO_THREADS = """
def loads_data():
    time.sleep(300)
def trains():
    ready()
    time.sleep(300)
threading.Thread(target=loads_data, daemon=True).start()
trains()
"""

PASSES_SIGNALS_ON = """
import signal, subprocess, sys
inside = subprocess.Popen([sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(300)"])
for number in range(signal.SIGRTMIN, signal.SIGRTMAX):
    signal.signal(number, lambda number, _: inside.send_signal(number))
inside.wait()
"""

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start children that dump to tmp_path / "dump0", "dump1", …, and wait until they are ready."""
    children: list[subprocess.Popen[str]] = []

    def started(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(tmp_path / f"dump{len(children)}")]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield started
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def ask(tmp_path: Path, *children: subprocess.Popen[str], wait: timedelta = LONG) -> dict[int, str]:
    """Ask the children, in the order they were started, for their stacks."""
    pids = {rank: child.pid for rank, child in enumerate(children)}
    files = {rank: tmp_path / f"dump{rank}" for rank in pids}
    return asyncio.run(collect_rank_stacks(pids, files, wait))


@pytest.mark.parametrize(
    ("code", "function"),
    [(SLEEPS, "wait_for_batch"), (HOLDS_THE_GIL, "in_c_code"), (SPINS_IN_C, "in_c_loop")],
)
def test_dump_shows_where_a_rank_is(start: Start, tmp_path: Path, code: str, function: str) -> None:
    """A rank that sleeps, holds the GIL in C or spins in C tells its stack all the same."""
    child = start(HEAD + code)
    assert f" in {function}\n" in ask(tmp_path, child)[0]
    assert child.poll() is None


def test_dump_shows_all_threads(start: Start, tmp_path: Path) -> None:
    """The thread that hangs need not be the main one."""
    text = ask(tmp_path, start(HEAD + TWO_THREADS))[0]
    assert "in trains" in text
    assert "in loads_data" in text


def test_dump_holds_only_what_was_asked_for_now(start: Start, tmp_path: Path) -> None:
    """A second dump does not repeat the first one."""
    child = start(HEAD + SLEEPS)
    ask(tmp_path, child)
    assert ask(tmp_path, child)[0].count("in wait_for_batch") == 1


def test_dump_asks_nobody_whom_the_signal_would_end(start: Start, tmp_path: Path) -> None:
    """A process that is not armed lives on, and has no stacks."""
    child = start("import time; print('ready', flush=True); time.sleep(300)")
    assert not catches_dump_signal(child.pid)
    assert ask(tmp_path, child) == {0: ""}
    assert child.poll() is None


def test_dump_asks_no_wrapper_that_passes_all_signals_on(start: Start, tmp_path: Path) -> None:
    """A container's program does that, and what is in the container does not know the signal."""
    child = start(PASSES_SIGNALS_ON)
    assert catches_dump_signal(child.pid)
    assert ask(tmp_path, child, wait=SHORT) == {0: ""}
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.5)


def test_stopped_rank_is_named_and_does_not_keep_the_others(start: Start, tmp_path: Path) -> None:
    """A rank under SIGSTOP cannot answer; the kernel's state says so, and its peers are heard."""
    stopped, sleeping = start(HEAD + SLEEPS), start(HEAD + SLEEPS)
    os.kill(stopped.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    before = time.monotonic()
    texts = ask(tmp_path, stopped, sleeping, wait=timedelta(seconds=120))
    assert texts[0] == ""
    assert "in wait_for_batch" in texts[1]
    assert time.monotonic() - before < 120
    assert describe_process_state(stopped.pid).startswith("T (stopped)")
    assert describe_process_state(sleeping.pid).startswith("S (sleeping)")


def test_rank_that_has_ended_has_no_stacks(start: Start, tmp_path: Path) -> None:
    """A rank may end between the judgement and the question."""
    child = start(HEAD + SLEEPS)
    child.kill()
    child.wait()
    assert ask(tmp_path, child, wait=SHORT) == {0: ""}
    assert describe_process_state(child.pid) == "gone"


def test_dump_file_is_private(start: Start, tmp_path: Path) -> None:
    """Stacks show paths and names of the user's code."""
    start(HEAD + SLEEPS)
    assert (tmp_path / "dump0").stat().st_mode & 0o777 == 0o600


def test_rank_that_cannot_open_its_file_runs_on_unarmed(start: Start, tmp_path: Path) -> None:
    """A run is worth more than its stacks."""
    (tmp_path / "dump0").mkdir()
    child = start(HEAD + SLEEPS)
    assert not catches_dump_signal(child.pid)
    assert ask(tmp_path, child) == {0: ""}


def test_state_names_what_the_kernel_waits_in(tmp_path: Path) -> None:
    """A thread in an uninterruptible system call is named beside the main thread."""
    for name, state, wchan in (
        ("7", "S (sleeping)", "futex_wait_queue"),
        ("7/task/7", "S (sleeping)", "futex_wait_queue"),
        ("7/task/8", "D (disk sleep)", "rpc_wait_bit_killable"),
    ):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "status").write_text(f"Name:\tpython\nState:\t{state}\n")
        (tmp_path / name / "wchan").write_text(wchan)
    assert describe_process_state(7, tmp_path) == (
        "S (sleeping) in futex_wait_queue; 1 of its threads D (disk sleep) in rpc_wait_bit_killable"
    )
