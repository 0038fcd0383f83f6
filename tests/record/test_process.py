"""Promises of record.process: telling a process from another with the same pid."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpckit.record.process import is_process_alive, read_process_start_id, this_host


def test_alive_knows_this_process() -> None:
    """A process is alive under its own host, pid and start mark."""
    mark = read_process_start_id(os.getpid())
    assert mark is not None
    assert is_process_alive(this_host(), os.getpid(), mark) is True


def test_alive_is_false_for_another_process_with_the_same_pid() -> None:
    """A pid that was given to somebody else does not count."""
    assert is_process_alive(this_host(), os.getpid(), "1") is False


def test_alive_is_unknown_from_another_pid_namespace() -> None:
    """A container may have the host's name, and the same pids for other processes."""
    mark = read_process_start_id(os.getpid())
    ask = f"from hpckit.record.process import *; print(is_process_alive(this_host(), 1, {mark!r}))"
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", ask]
    done = subprocess.run(inside, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("no new namespace may be made here")
    assert done.stdout == "None\n", done.stderr


def test_alive_is_unknown_on_another_host() -> None:
    """Of another host's processes nothing can be known from here."""
    assert is_process_alive("some-other-host", os.getpid(), "1") is None


def test_start_mark_is_none_for_a_process_that_ended() -> None:
    """A process that ended is gone, also while nobody has waited for it (a zombie)."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert read_process_start_id(child.pid) is not None
    child.communicate(b"\n")
    assert read_process_start_id(child.pid) is None


def test_start_mark_is_none_for_a_zombie() -> None:
    """A zombie does nothing any more: it counts as ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert read_process_start_id(child.pid) is None
    finally:
        child.wait()


def test_start_mark_reads_names_with_blanks_and_parentheses() -> None:
    """A process that calls itself `a) b (c` does not shift the fields."""
    script = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) 1 (c'); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    mark = read_process_start_id(child.pid)
    child.communicate(b"\n")
    assert mark is not None
    ticks, _, namespace = mark.partition("@")
    here, _, own = (read_process_start_id(os.getpid()) or "").partition("@")
    assert (int(ticks) >= int(here), namespace) == (True, own)
