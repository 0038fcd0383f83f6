"""Promises about what ranks leave behind: it ends with their round, whatever it did to stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from hpckit.model.events import AgentJoined
from hpckit.model.launch import Recovery, Runtime
from hpckit.record.layout import LaunchPaths
from hpckit.record.store import read_events

LEAVE = """
import os, signal, subprocess, sys, time
SLEEP = "import signal, time; time.sleep(300)"
IGNORE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
AGAIN = '''
import os, time
end = time.monotonic() + 120
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.02)
'''
NOTE = '''
import pathlib, signal, sys, time
def note(*_):
    pathlib.Path(sys.argv[1]).touch()
    sys.exit()
signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
time.sleep(300)
'''

def start(program):
    return subprocess.Popen([sys.executable, "-c", program, WORD], start_new_session=True)

def leave():
    start(SLEEP), start(IGNORE), start(AGAIN)
    os.kill(start(SLEEP).pid, signal.SIGSTOP)
    if not os.fork():  # a daemon with nothing of the rank's, not even its variables
        os.setsid()
        if not os.fork():
            os.execve(sys.executable, [sys.executable, "-c", SLEEP, WORD], {})
        os._exit(0)
    while len(living(WORD)) < 5:
        time.sleep(0.1)

def living(word):
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline") as file:
                if word in file.read().split("\\0"):
                    found.append(int(name))
        except OSError:
            pass
    return found
"""
"""Programs that stay, started by a rank, and how they are found: by a word of theirs."""

ROUNDS = f"""{LEAVE}
WORD = os.environ.get("HPCKIT_ATTEMPT_DIR", "") + "/word"

def main(config=None, run=None):
    if os.environ["HPCKIT_ROUND"] == "0":
        leave()
        print("began", flush=True)
        END
    print("left", living(WORD), flush=True)

if __name__ == "__main__":
    main()
"""

of_test: dict[str, Any] = {}
exec(LEAVE, of_test)  # noqa: S102  # the same functions here


def living(attempt: Path) -> list[int]:
    """Return what a rank of this attempt has left and is still there."""
    return list(of_test["living"](f"{attempt}/word"))


def of_kind(kind: str) -> dict[str, Any]:
    """Return the settings of a rank that is forked, that is a Python of its own, or a command."""
    if kind == "command":
        return {"entry_point": None, "command": ["python", "task.py"]}
    return {"runtime": Runtime(stop_grace_s=2, preload_torch=kind == "forked")}


@pytest.mark.training
@pytest.mark.parametrize("kind", ["forked", "executed", "command"])
def test_what_a_killed_rank_has_left_ends_before_the_next_round(workshop: Any, ranks: Any, kind: str) -> None:
    """In sessions of their own, as orphans, deaf to SIGTERM, stopped, or always another process."""
    code = ROUNDS.replace("END", "os.kill(os.getpid(), 9)")
    settings = {**ranks(1, recovery=Recovery(restarts={"signal": 1})), **of_kind(kind)}
    ended = workshop.attempt(code, **settings)
    assert ended.code == 0, ended.output
    assert "began" in ended.log(0)
    assert "left []" in ended.log(0, round_=1)
    assert not living(ended.paths.folder)


@pytest.mark.training
@pytest.mark.parametrize("kind", ["forked", "command"])
def test_what_a_rank_has_left_when_it_returned_ends_with_the_attempt(
    workshop: Any, ranks: Any, kind: str
) -> None:
    """It may leave in order first; one that does not is killed."""
    end = "start(NOTE); start(IGNORE); time.sleep(1); return"
    ended = workshop.attempt(ROUNDS.replace("END", end), **{**ranks(1), **of_kind(kind)})
    assert ended.code == 0, ended.output
    assert not living(ended.paths.folder)
    assert (ended.paths.folder / "word").exists()


@pytest.mark.training
@pytest.mark.parametrize("kind", ["forked", "command"])
def test_what_ranks_have_started_ends_when_their_agent_is_killed(
    workshop: Any, ranks: Any, kind: str
) -> None:
    """Before the agent that takes its place starts the next round."""
    code = ROUNDS.replace("END", "time.sleep(300)")
    launch = workshop.freeze(
        code, **{**ranks(1, recovery=Recovery(restarts={"launcher_lost": 1})), **of_kind(kind)}
    )
    process = workshop.start(launch)
    paths = LaunchPaths(launch.folder).run(0).attempt(1)
    until(lambda: paths.round(0).rank_log(0).exists() and "began" in paths.round(0).rank_log(0).read_text())
    agents = [event.pid for event in read_events(paths.events) if isinstance(event, AgentJoined)]
    os.kill(agents[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "left []" in paths.round(1).rank_log(0).read_text()
    assert not living(paths.folder)


ADOPTER = f"""{LEAVE}
from hpckit.runtime.left_behind import become_subreaper, reap_orphans, end_orphans
WORD = sys.argv[1]
become_subreaper()
own = subprocess.Popen([sys.executable, "-c", SLEEP])
rank = os.fork()
if not rank:
    os.setsid()
    leave()
    if not os.fork():
        os._exit(0)
    os._exit(3)
while os.waitid(os.P_PID, rank, os.WEXITED | os.WNOWAIT) is None:
    pass
reap_orphans([rank])
assert end_orphans([rank], float(sys.argv[2])) == []
found = [pid for pid in living(WORD) if pid != os.getpid()]
print(found, own.poll(), os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]))
reap_orphans([])
own.kill()
print(own.wait())
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no zombie")
"""


@pytest.mark.parametrize("grace_s", ["0", "0.5"])
def test_own_children_and_the_ends_of_ranks_are_left_alone(tmp_path: Path, grace_s: str) -> None:
    """Who waits for a process that is no orphan still hears how it ended; no orphan stays."""
    words = [sys.executable, "-c", ADOPTER, str(tmp_path / "word"), grace_s]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["[] None 3", "-9", "no zombie"], done.stderr


GUEST = f"""{LEAVE}
import ctypes
from hpckit.runtime.left_behind import end_what_is_started

def adopts():
    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(found), 0, 0, 0)
    return found.value

WORD = sys.argv[1]
other = start(SLEEP)
with end_what_is_started(0.1):
    child = os.fork()
    if not child:
        os.setsid()
        leave()
        os._exit(0)
    os.waitpid(child, 0)
    print(adopts(), len(living(WORD)) > 2)
left = [pid for pid in living(WORD) if pid not in (os.getpid(), other.pid)]
print(left, other.poll(), adopts())
other.kill()
"""


def test_who_has_other_children_ends_only_what_a_block_has_started(tmp_path: Path) -> None:
    """`hpckit image pull` may be called in a program that has processes of its own, and loses none."""
    words = [sys.executable, "-c", GUEST, str(tmp_path / "word")]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["1 True", "[] None 0"], done.stderr


WRAPPED = """
import os, subprocess, sys
LAST = "/proc/sys/kernel/ns_last_pid"
open(LAST, "w").write("30000")
others = [subprocess.Popen(["sleep", "100"]) for _ in range(600)]
open(LAST, "w").write("300")
code = subprocess.call([sys.executable, "-c", *sys.argv[1:]])
for other in others:
    other.kill()
sys.exit(code)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace of process ids")
def test_what_forks_again_and_again_ends_although_process_ids_began_again(tmp_path: Path) -> None:
    """Then the newest process has no longer the highest number, and hundreds are looked at before it."""
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    words = [*namespace, sys.executable, "-c", WRAPPED, ADOPTER, str(tmp_path / "word"), "0.5"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=100)
    # Process 1 is the one that began this: the word is among its words, too.
    assert done.stdout.splitlines() == ["[1] None 3", "-9", "no zombie"], done.stderr
