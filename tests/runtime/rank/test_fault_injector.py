"""Promises of faults inside a rank, and of finding the processes of a run: with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import LIMIT_S, until

from hpckit.errors import ConfigError
from hpckit.model.fault import FaultTarget
from hpckit.record.process import read_process_start_id
from hpckit.runtime.processes import ProcessQuery, find_processes, signal_processes
from hpckit.runtime.rank.fault_injector import FILL_FILE, InjectedFaultError, make_fault_injector

LOOP = """
import os, sys, threading, time
from pathlib import Path
from hpckit.runtime.rank.fault_injector import make_fault_injector
folder, *words = sys.argv[1:]
def beat():
    while True:
        os.write(1, b"beat\\n")
        time.sleep(0.02)
injector = make_fault_injector(words, Path(folder) / "chaos", 0)
threading.Thread(target=beat, daemon=True).start()
for step in range(4):
    injector.inject_due_faults(step)
    os.write(1, b"step %d\\n" % step)
"""


def loop(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run four steps of rank 0 with these faults planned."""
    argv = [sys.executable, "-c", LOOP, str(folder), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def steps(done: subprocess.CompletedProcess[str]) -> list[int]:
    """Return the steps that were reached."""
    lines = done.stdout.splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("step")]


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a starter of processes that end with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*argv: str, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_injector_without_faults_does_nothing(tmp_path: Path) -> None:
    """No words: no file, no fault, whatever the step."""
    injector = make_fault_injector([], tmp_path / "chaos", 0)
    for step in range(1000):
        injector.inject_due_faults(step)
    assert (injector.poisoned, list(tmp_path.iterdir())) == (False, [])


def test_injector_leaves_other_ranks_alone(tmp_path: Path) -> None:
    """A fault of rank 1 does not happen to rank 0."""
    make_fault_injector(["raise rank=1 step=0"], tmp_path / "chaos", 0).inject_due_faults(0)
    with pytest.raises(InjectedFaultError):
        make_fault_injector(["raise rank=1 step=0"], tmp_path / "chaos", 1).inject_due_faults(0)


def test_injector_refuses_words_that_are_no_fault(tmp_path: Path) -> None:
    """Nobody trains for hours in the belief that a fault was planned."""
    with pytest.raises(ConfigError, match="begins with 'explode'"):
        make_fault_injector(["explode step=1"], tmp_path / "chaos", 0)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("kill step=2", -signal.SIGKILL),
        ("segfault step=2", -signal.SIGSEGV),
        ("abort step=2", -signal.SIGABRT),
        ("exit step=2 code=7", 7),
        ("raise step=2", 1),
        ("oom step=2 limit_mb=96", 1),
    ],
)
def test_fatal_fault_ends_the_rank_before_its_step_and_only_once(
    tmp_path: Path, words: str, code: int
) -> None:
    """The process ends as the fault says; started again, it goes on as if nothing were planned."""
    first = loop(tmp_path, words)
    assert (first.returncode, steps(first)) == (code, [0, 1]), first.stderr
    assert f"hpckit: chaos: {words.split(maxsplit=1)[0]} rank=0" in first.stderr
    again = loop(tmp_path, words)
    assert (again.returncode, steps(again)) == (0, [0, 1, 2, 3]), again.stderr


def test_oom_with_a_limit_is_a_memory_error(tmp_path: Path) -> None:
    """Python itself refuses the memory, and what it then says can be recorded."""
    assert "MemoryError: chaos" in loop(tmp_path, "oom step=1 limit_mb=64").stderr


def test_fault_with_times_happens_so_often(tmp_path: Path) -> None:
    """times=2 is a crash loop of two; times=always one without an end."""
    codes = [loop(tmp_path, "exit step=1 code=3 times=2").returncode for _ in range(3)]
    assert codes == [3, 3, 0]
    codes = [loop(tmp_path, "exit step=1 code=3 times=always").returncode for _ in range(3)]
    assert codes == [3, 3, 3]


def test_two_faults_alike_happen_both(tmp_path: Path) -> None:
    """Each planned fault has a mark of its own, which says what happened and when."""
    words = ["raise step=1", "raise step=1"]
    codes = [loop(tmp_path, *words).returncode for _ in range(3)]
    assert codes == [1, 1, 0]
    marks = [json.loads(mark.read_text()) for mark in (tmp_path / "chaos").iterdir()]
    assert [mark["fault"] for mark in marks] == ["raise rank=0 step=1"] * 2


def test_fault_that_cannot_be_marked_is_left_out(tmp_path: Path) -> None:
    """Without a mark a fault would never stop; so it does not begin, and that is said."""
    (tmp_path / "chaos").write_text("in the way")
    done = loop(tmp_path, "kill step=1")
    assert (done.returncode, steps(done)) == (0, [0, 1, 2, 3])
    assert "left out kill" in done.stderr


def test_hang_keeps_threads_alive_and_hang_gil_does_not(tmp_path: Path) -> None:
    """A hang in Python leaves the GIL to others, one in C with the GIL held stops them all."""
    beats = [
        loop(tmp_path, f"{kind} step=1 seconds=1").stdout.split("step 0")[1].count("beat")
        for kind in ("hang", "hang_gil")
    ]
    assert beats[0] > 10 > beats[1]


def test_hang_gil_is_ended_by_nothing_but_a_kill(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Signals with a Python handler go unheard, as in a stuck library."""
    ignoring = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(5))\n" + LOOP
    process = start(sys.executable, "-c", ignoring, str(tmp_path), "hang_gil step=0")
    until(lambda: list(tmp_path.glob("chaos/*")))
    time.sleep(0.2)
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)


def test_stop_freezes_the_rank_until_it_is_continued(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """SIGSTOP to oneself; after SIGCONT the loop goes on to its end."""
    process = start(sys.executable, "-c", LOOP, str(tmp_path), "stop step=2")
    until(lambda: "State:\tT" in Path(f"/proc/{process.pid}/status").read_text())
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=LIMIT_S) == 0


def test_nan_poisons_from_its_step_on(tmp_path: Path) -> None:
    """The flag is up once the step is reached, and stays up."""
    injector = make_fault_injector(["nan step=2"], tmp_path / "chaos", 0)
    seen = []
    for step in range(4):
        injector.inject_due_faults(step)
        seen.append(injector.poisoned)
    assert seen == [False, False, True, True]


def test_leak_takes_more_memory_each_step(tmp_path: Path) -> None:
    """Resident memory grows by what was asked for, step by step."""
    injector = make_fault_injector(["leak step=0 mb_per_step=8"], tmp_path / "chaos", 0)
    injector.inject_due_faults(0)
    before = resident_mb()
    for step in range(1, 5):
        injector.inject_due_faults(step)
    assert resident_mb() - before == pytest.approx(32, abs=6)


def resident_mb() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def test_fill_disk_takes_so_much_and_gives_it_back(tmp_path: Path) -> None:
    """A limit is kept to the byte; after `seconds` the space is free again."""
    words = f"fill_disk step=0 folder={tmp_path} limit_mb=3 seconds=0.3"
    make_fault_injector([words], tmp_path / "chaos", 0).inject_due_faults(0)
    (file,) = tmp_path.glob(f"{FILL_FILE}*")
    assert file.stat().st_blocks * 512 >= 3 << 20
    assert file.stat().st_size == 3 << 20
    until(lambda: not file.exists())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_fill_disk_leaves_no_room_at_all(tmp_path: Path) -> None:
    """Without a limit the file system is full to the last page, and the run goes on."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this container mounts nothing")
    try:
        make_fault_injector([f"fill_disk step=0 folder={small}"], tmp_path / "chaos", 0).inject_due_faults(0)
        with pytest.raises(OSError, match="No space left"):
            (small / "more").write_bytes(b"x" * 8192)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def rank(start: Callable[..., subprocess.Popen[str]], attempt: Path, number: int) -> int:
    """Start what looks like a rank with a child that inherits its variables; return its pid."""
    variables = {"HPCKIT_ATTEMPT_DIR": str(attempt), "HPCKIT_RANK": str(number)}
    process = start("sh", "-c", "sleep 600 & echo; wait", **variables)
    assert process.stdout is not None
    process.stdout.readline()
    return process.pid


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """Return the folder of an attempt, in its launch."""
    folder = tmp_path / "launch" / "runs" / "00003" / "attempts" / "002"
    folder.mkdir(parents=True)
    return folder


def test_ranks_are_found_without_their_children_or_neighbours(
    attempt: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """One rank of one attempt, although its children carry the same variables."""
    pid = rank(start, attempt, 1)
    rank(start, attempt, 0)
    rank(start, attempt.with_name("001"), 1)
    assert find_processes(ProcessQuery(target=FaultTarget.rank, attempt=attempt, rank=1)) == (pid,)


def test_ranks_are_found_through_a_link(
    attempt: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """A launch folder reached by another path is still the same."""
    pid = rank(start, attempt, 0)
    (tmp_path / "link").symlink_to(tmp_path / "launch")
    elsewhere = tmp_path / "link" / attempt.relative_to(tmp_path / "launch")
    assert find_processes(ProcessQuery(target=FaultTarget.rank, attempt=elsewhere, rank=0)) == (pid,)


def test_agents_are_found_by_words_and_node(
    attempt: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """The agent of this node, not the one next door, nor the srun that started it."""
    words = ("-P", "-m", "hpckit.runtime.agent", str(tmp_path / "launch"), "3", "2")
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import time; time.sleep(600)")
    pids = {
        node: start(sys.executable, str(sleeper), *words[1:], SLURMD_NODENAME=node).pid
        for node in ("n1", "n2")
    }
    start(sys.executable, str(sleeper), "--wait=0", "python", *words, SLURMD_NODENAME="n1")
    found = {
        node: find_processes(ProcessQuery(target=FaultTarget.agent, attempt=attempt, node=node))
        for node in ("n1", "n3")
    }
    assert found == {"n1": (pids["n1"],), "n3": ()}


def test_supervisor_is_found_only_while_it_is_itself(
    attempt: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """A pid taken over by another process is nobody."""
    pid = start("sleep", "600").pid
    right, wrong = (pid, read_process_start_id(pid) or ""), (pid, "1")
    for process, found in ((right, (pid,)), (wrong, ())):
        assert (
            find_processes(ProcessQuery(target=FaultTarget.supervisor, attempt=attempt, process=process))
            == found
        )


def test_finder_works_as_a_program_on_another_node(
    attempt: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """`python -m hpckit.runtime.processes` signals whom the words mean, and prints whom it hit."""
    pid = rank(start, attempt, 5)
    wanted = ProcessQuery(target=FaultTarget.rank, attempt=attempt, rank=5)
    program = [sys.executable, "-P", "-m", "hpckit.runtime.processes"]
    for number, found in ((0, [pid]), (signal.SIGKILL, [pid])):
        argv = [*program, str(int(number)), *wanted.to_command_words()]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(done.stdout) == found
    until(lambda: read_process_start_id(pid) is None)
    assert signal_processes(wanted, 0) == ()
