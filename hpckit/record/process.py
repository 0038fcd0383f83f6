"""Whether a process is still the same one, identified by pid, host and start mark.

A pid may be reused: the start mark (field 22 of /proc/PID/stat, in clock ticks since boot) tells
two processes with the same pid apart.
"""

from __future__ import annotations

import os
from pathlib import Path

_STATE = 0
_START = 19
_DEAD = frozenset({"Z", "X"})


def this_host() -> str:
    """Return this host's name, as records hold it."""
    return os.uname().nodename


def start_mark(pid: int) -> str | None:
    """Return when a process of this host started; None if it does not exist or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name, field 2, may itself contain blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in _DEAD else fields[_START]


def alive(host: str, pid: int, mark: str) -> bool | None:
    """Return whether this exact process is alive; None if it is on another host."""
    return None if host != this_host() else start_mark(pid) == mark
