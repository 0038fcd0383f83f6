"""Who ends with whom: a rank with its agent, and what ranks have started and left behind.

The kernel ends a rank with its agent, or a thread does if nsys is in between. A service, a daemon or a data
loader's worker that has left its rank's session gets no signal that the rank gets, and may hold a GPU's
memory. When its parent ends, the kernel makes it a child of the nearest living ancestor that adopts orphans:
of who forks ranks for an agent, else of the agent. What these have started for themselves stays in their own
session; ranks, and so all that is below them, have others. Imports no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from hpckit.record.process import DEAD, PARENT, SESSION, STATE, read_proc_stat_fields, read_process_start_id

NSYS_VARIABLE = "HPCKIT_NSYS"
"""Names the file for nsys's report, in a rank that was started below nsys; else why it was not."""
AGENT_VARIABLE = "HPCKIT_AGENT_PID"
"""Names the agent of a rank that is not its child."""

_PR_SET_PDEATHSIG = 1
_WATCH_S = 1.0


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies (Linux; kept across exec)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_agent(environ: Mapping[str, str]) -> None:
    """End this process when its agent dies.

    The kernel counts the thread that started a process as its parent, and it is unknown how long
    that thread of nsys lives: below nsys, a thread of our own watches the agent.
    """
    agent = environ.get(AGENT_VARIABLE, "")
    if not agent.isdecimal():
        die_with_parent()
        return
    mark = read_process_start_id(int(agent))
    watching = threading.Thread(target=_kill_when_agent_dies, args=(int(agent), mark), daemon=True)
    watching.start()


def _kill_when_agent_dies(agent: int, mark: str | None) -> None:
    while mark is not None and read_process_start_id(agent) == mark:
        time.sleep(_WATCH_S)
    os.kill(os.getpid(), signal.SIGKILL)


_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_KILL_S = 5.0
"""A process that is still there after that is held by a driver or belongs to another user."""
_LOOK_S = 0.01
_QUIET = 2


def become_subreaper() -> None:
    """Have the kernel give this process the orphans of all that is below it (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def end_what_is_started(grace_s: float) -> Iterator[None]:
    """End what the block has started and left, also in sessions of its own.

    This process may be a program that has other children: these stay, and it adopts orphans no longer.
    """
    libc, adopted = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopted), 0, 0, 0)
    before = frozenset(pid for pid, _ in _list_orphans((), _list_processes()))
    become_subreaper()
    try:
        yield
    finally:
        end_orphans(before, grace_s)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, adopted.value, 0, 0, 0)


def reap_orphans(ranks: Collection[int]) -> None:
    """Reap orphans of this process that have ended; others wait for its ranks and own children.

    Call it now and then: what has no parent to wait for it would stay a zombie.
    """
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if dead.si_pid in ranks or os.getsid(dead.si_pid) == os.getsid(0):
                return
            os.waitpid(dead.si_pid, 0)


def end_orphans(ranks: Collection[int] = (), grace_s: float = 0.0) -> list[int]:
    """End the orphans of this process, also new ones; return those that cannot be ended.

    Call it when the ranks have ended, and bury nothing meanwhile. Without a grace period nothing is
    asked to leave. One that forks and ends, again and again, may slip through a look; what it ended
    as is then a zombie at the next look, so that two looks without either prove that none is left.
    """
    asked: set[int] = set()
    begin, quiet = time.monotonic(), 0
    while quiet < _QUIET:
        met, quiet = [], quiet + 1
        waited_s = time.monotonic() - begin
        # The first look is quick, the second one sees what changes while the first reads.
        for pid, is_zombie in _list_orphans(ranks, _list_children() if quiet == 1 else _list_processes()):
            met.append(pid)
            with contextlib.suppress(OSError):
                if is_zombie:
                    os.waitpid(pid, os.WNOHANG)
                elif waited_s >= grace_s:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in asked:
                    asked.add(pid)
                    os.kill(pid, signal.SIGTERM)
        if met and waited_s > grace_s + _KILL_S:
            return met
        quiet = 0 if met else quiet
        time.sleep(_LOOK_S if met and waited_s < grace_s else 0)
    return []


def _list_orphans(ranks: Collection[int], numbers: Iterable[int]) -> Iterator[tuple[int, bool]]:
    """Yield this process's children in other sessions than its own, and whether they are zombies.

    Their numbers belong to no other process before this one waits for them. The newest come first:
    one that forks and ends is met while it is there.
    """
    own, session = str(os.getpid()), str(os.getsid(0))
    for pid in numbers:
        found = read_proc_stat_fields(pid)
        if found and found[PARENT] == own and found[SESSION] != session and pid not in ranks:
            yield pid, found[STATE] in DEAD


def _list_processes() -> list[int]:
    """Return the processes of this machine, the newest first unless their numbers began again meanwhile."""
    return sorted(map(int, filter(str.isdecimal, os.listdir("/proc"))), reverse=True)  # noqa: PTH208  # thrice as fast


def _list_children() -> list[int]:
    """Return the children of this process, the newest first; of kernels that do not tell, all processes.

    While children end, some may be missing.
    """
    found: list[str] = []
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        try:
            with Path(f"/proc/self/task/{thread}/children").open(encoding="ascii") as file:
                found += file.read().split()
        except FileNotFoundError:
            if thread == str(os.getpid()):
                return _list_processes()
        except ProcessLookupError:  # the thread has ended
            continue
    return [int(pid) for pid in reversed(found)]
