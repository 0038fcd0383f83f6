"""Whether a process is still the same one, identified by pid, host and start mark.

A pid may be reused: the start mark (field 22 of /proc/PID/stat, in clock ticks since boot) tells
two processes with the same pid apart. It also names the pid namespace: a container may have the
host's name, and sees other processes.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

STATE, PARENT, SESSION, SIZE = 0, 1, 3, 20
"""Places in `read_proc_stat_fields`."""
_START = 19
DEAD = frozenset({"Z", "X"})


def this_host() -> str:
    """Return this host's name, as records hold it."""
    return os.uname().nodename


def read_proc_stat_fields(pid: int) -> list[str]:
    """Return what /proc/PID/stat says from the state on; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError:
        return []
    # The command's name, field 2, may itself contain blanks and parentheses.
    return text.rpartition(")")[2].split()


def read_process_start_id(pid: int) -> str | None:
    """Return when a process of this host started; None if it does not exist or is a zombie."""
    fields = read_proc_stat_fields(pid)
    dead = not fields or fields[STATE] in DEAD
    return None if dead else f"{fields[_START]}@{_read_pid_namespace()}"


def is_process_alive(host: str, pid: int, mark: str) -> bool | None:
    """Return whether this exact process is alive; None if it is on another host or not visible."""
    namespace = mark.partition("@")[2]
    if host != this_host() or (namespace and namespace != _read_pid_namespace()):
        return None
    return read_process_start_id(pid) == mark


@cache
def _read_pid_namespace() -> str:
    try:
        return Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return ""
