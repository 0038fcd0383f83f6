"""Promises of hpckit.record.lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpckit.errors import HeldError
from hpckit.record.lock import exclusive
from hpckit.record.process import this_host

AT = datetime(2026, 1, 1, tzinfo=UTC)
PROGRAM = """
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from hpckit.errors import HeldError
from hpckit.record.lock import exclusive
lock, log = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(30):
    try:
        with exclusive(lock, at=datetime.now(UTC), what="tests"):
            inside = lock.with_suffix(".inside")
            inside.touch(exist_ok=False)
            time.sleep(0.002)
            inside.unlink()
            with log.open("a") as file:
                file.write("x")
    except HeldError:
        time.sleep(0.001)
"""


def leave(lock: Path, *, host: str, pid: int) -> None:
    """Leave a lock as a process that is gone has left it."""
    lock.write_text(json.dumps({"host": host, "pid": pid, "started": "1", "at": "yesterday"}))


def test_lock_is_for_one_at_a_time(tmp_path: Path) -> None:
    """While it is held, whoever else comes is told by whom, and since when."""
    lock = tmp_path / "lock"
    with exclusive(lock, at=AT, what="counts beans"):
        with pytest.raises(HeldError, match="counts beans since 2026"):
            exclusive(lock, at=AT, what="counts beans").__enter__()
        assert lock.exists()
    assert list(tmp_path.iterdir()) == []


def test_lock_of_a_dead_process_here_is_taken_over(tmp_path: Path) -> None:
    """A lock whose process is gone from this host does not stand in the way."""
    lock = tmp_path / "lock"
    leave(lock, host=this_host(), pid=1)
    with exclusive(lock, at=AT, what="tests"):
        assert json.loads(lock.read_text())["pid"] != 1
    assert list(tmp_path.iterdir()) == []


def test_lock_of_another_host_stands(tmp_path: Path) -> None:
    """Of a process elsewhere nobody here can know; the way out is named."""
    lock = tmp_path / "lock"
    leave(lock, host="elsewhere", pid=1)
    with pytest.raises(HeldError, match="process 1 on elsewhere") as raised:
        exclusive(lock, at=AT, what="tests").__enter__()
    assert f"remove {lock}" in raised.value.hint


def test_lock_of_another_host_that_is_hours_old_is_taken_over(tmp_path: Path) -> None:
    """Nothing that is done under a lock takes so long: its host is gone."""
    lock = tmp_path / "lock"
    leave(lock, host="elsewhere", pid=1)
    hours_ago = lock.stat().st_mtime - 2 * 3600
    os.utime(lock, (hours_ago, hours_ago))
    with exclusive(lock, at=AT, what="resumes"):
        assert this_host() in lock.read_text()


def test_lock_holds_among_many_processes_and_a_stale_start(tmp_path: Path) -> None:
    """However many rush for it, also over a dead one's lock, never are two inside."""
    lock, log = tmp_path / "lock", tmp_path / "log"
    leave(lock, host=this_host(), pid=1)
    words = [sys.executable, "-c", PROGRAM, str(lock), str(log)]
    rushing = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=120)[1] for process in rushing]
    assert [process.returncode for process in rushing] == [0] * 4, said
    assert log.stat().st_size > 0
    assert not lock.exists()
