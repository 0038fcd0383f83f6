"""Ends what ranks have started and left behind: a service, a daemon, a data loader's worker.

A process that has left its rank's session gets no signal that the rank gets, and may hold a GPU's
memory. When its parent ends, the kernel makes it a child of the nearest living ancestor that adopts
orphans: of who forks ranks for an agent, else of the agent. What these have started for themselves
stays in their own session; ranks, and so all that is below them, have others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from hpckit.record.process import start_mark

_PR_SET_CHILD_SUBREAPER = 36
_KILL_S = 5.0
"""A process that is still there after that is held by a driver or belongs to another user."""
_LOOK_S = 0.01
_STATE, _PARENT, _SESSION, _START = 0, 1, 3, 19


def adopt_orphans() -> None:
    """Have the kernel give this process the orphans of all that is below it (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def bury_orphans(ranks: Collection[int]) -> None:
    """Let orphans of this process that have ended go; others wait for its ranks and own children.

    Call it now and then: what has no parent to wait for it would stay a zombie.
    """
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if dead.si_pid in ranks or os.getsid(dead.si_pid) == os.getsid(0):
                return
            os.waitpid(dead.si_pid, 0)


def end_left_behind(adopters: Collection[int], grace_s: float = 0.0) -> list[int]:
    """End all that ranks below these processes have left behind; return what cannot be ended.

    Call it when the ranks have ended, or should. Without a grace period nothing is asked to leave.
    """
    asked: set[tuple[int, str]] = set()
    begin = time.monotonic()
    while left := list(_left_behind(adopters)):
        waited_s = time.monotonic() - begin
        if waited_s > grace_s + _KILL_S:
            break
        for process in left:
            if waited_s >= grace_s:
                _send(*process, signal.SIGKILL)
            elif process not in asked:
                asked.add(process)
                _send(*process, signal.SIGTERM)
        time.sleep(_LOOK_S if waited_s < grace_s else 0)
    return [pid for pid, _ in left]


def _left_behind(adopters: Collection[int]) -> Iterator[tuple[int, str]]:
    """Yield pid and start mark of living processes below these and in other sessions than theirs.

    The newest come first: one that forks and ends, again and again, is met while it is there.
    """
    found = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):  # noqa: PTH208  # thrice as fast
        with contextlib.suppress(OSError):
            # The command's name, field 2, may itself contain blanks and parentheses.
            found[pid] = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    own = {found[pid][_SESSION] for pid in adopters if pid in found}
    below = set(adopters)
    while new := {pid for pid in found.keys() - below if int(found[pid][_PARENT]) in below}:
        below |= new
    for pid in sorted(below & found.keys(), key=lambda pid: int(found[pid][_START]), reverse=True):
        if found[pid][_SESSION] not in own and found[pid][_STATE] not in {b"Z", b"X"}:
            yield pid, found[pid][_START].decode()


def _send(pid: int, mark: str, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        held = os.pidfd_open(pid)
        try:
            if start_mark(pid) == mark:  # else its number belongs to another process by now
                signal.pidfd_send_signal(held, number)
        finally:
            os.close(held)
