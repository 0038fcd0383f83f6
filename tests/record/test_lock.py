"""Promises of hpckit.record.lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpckit.errors import HeldError
from hpckit.record.lock import SILENT_S, hold_lock, is_lock_held
from hpckit.record.process import this_host

AT = datetime(2026, 1, 1, tzinfo=UTC)
PROGRAM = """
import os, random, sys, time
from datetime import UTC, datetime
from pathlib import Path
from hpckit.errors import HeldError
from hpckit.record.lock import hold_lock
from hpckit.record.process import read_process_start_id
lock, log, dies = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
passing = sys.argv[4] == "passing"
taken = 0
until = time.monotonic() + 60
while taken < 25 and time.monotonic() < until:
    try:
        with hold_lock(lock, at=datetime.now(UTC), what="tests", passing=passing):
            inside = lock.with_suffix(f".inside.{os.getpid()}")
            others = [one for one in lock.parent.glob("lock.inside.*")]
            inside.touch(exist_ok=False)
            for one in others:
                # Left by a process that died inside: it must be gone.
                assert read_process_start_id(int(one.suffix[1:])) is None, one
                one.unlink(missing_ok=True)
            time.sleep(0.001)
            assert list(lock.parent.glob("lock.inside.*")) == [inside]
            taken += 1
            if taken == dies:
                os._exit(9)
            inside.unlink()
            with log.open("a") as file:
                file.write("x")
    except HeldError:
        time.sleep(random.random() / 500)
"""


def leave(lock: Path, *, host: str, pid: int, number: int = 1) -> Path:
    """Leave a claim as a process that is gone has left it."""
    lock.mkdir(exist_ok=True)
    claim = lock / f"{number:08d}"
    claim.write_text(json.dumps({"host": host, "pid": pid, "started": "1", "at": "yesterday"}))
    return claim


def test_lock_is_for_one_at_a_time(tmp_path: Path) -> None:
    """While it is held, whoever else comes is told by whom, and since when."""
    lock = tmp_path / "lock"
    with hold_lock(lock, at=AT, what="counts beans"):
        with pytest.raises(HeldError, match="counts beans since 2026"):
            hold_lock(lock, at=AT, what="counts beans").__enter__()
        assert is_lock_held(lock)
    assert not is_lock_held(lock)


def test_lock_of_a_dead_process_here_is_taken_over(tmp_path: Path) -> None:
    """A lock whose process is gone from this host does not stand in the way."""
    lock = tmp_path / "lock"
    leave(lock, host=this_host(), pid=1)
    with hold_lock(lock, at=AT, what="tests"):
        assert is_lock_held(lock)
    assert not is_lock_held(lock)


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"host":'])
def test_lock_of_another_host_stands(tmp_path: Path, text: str) -> None:
    """Of a process elsewhere, or one that cannot be told, nobody here can know; a way is named."""
    lock = tmp_path / "lock"
    claim = leave(lock, host="elsewhere", pid=1)
    with pytest.raises(HeldError, match="process 1 on elsewhere") as raised:
        hold_lock(lock, at=AT, what="tests").__enter__()
    assert f"remove {lock}" in raised.value.hint
    claim.write_text(text)
    with pytest.raises(HeldError):
        hold_lock(lock, at=AT, what="tests").__enter__()


def test_lock_of_another_host_that_shows_no_life_is_taken_over(tmp_path: Path) -> None:
    """A holder shows itself every minute: one that has not for long is gone."""
    lock = tmp_path / "lock"
    claim = leave(lock, host="elsewhere", pid=1)
    long_ago = claim.stat().st_mtime - SILENT_S - 1
    os.utime(claim, (long_ago, long_ago))
    with hold_lock(lock, at=AT, what="resumes"):
        assert is_lock_held(lock)


def test_lock_is_kept_by_who_lives_however_long_it_takes(tmp_path: Path) -> None:
    """A removal that lasts hours keeps its lock: the claim is renewed while it goes on."""
    lock = tmp_path / "lock"
    with hold_lock(lock, at=AT, what="cleans", renewed_s=0.01):
        (claim,) = lock.iterdir()
        long_ago = claim.stat().st_mtime - 10 * SILENT_S
        os.utime(claim, (long_ago, long_ago))
        until = time.monotonic() + 60
        while claim.stat().st_mtime == long_ago and time.monotonic() < until:
            time.sleep(0.01)
        claim.write_text(claim.read_text().replace(this_host(), "elsewhere"))
        with pytest.raises(HeldError):
            hold_lock(lock, at=AT, what="cleans").__enter__()


def test_lock_is_not_given_up_by_one_that_lost_it(tmp_path: Path) -> None:
    """Who slept so long that another took over frees nothing of the other's when it wakes up."""
    lock = tmp_path / "lock"
    with hold_lock(lock, at=AT, what="sleeps"):
        leave(lock, host="elsewhere", pid=7, number=2)
    with pytest.raises(HeldError, match="process 7 on elsewhere"):
        hold_lock(lock, at=AT, what="tests").__enter__()


def test_lock_leaves_few_files_behind(tmp_path: Path) -> None:
    """A launch that was resumed a hundred times has a handful of them."""
    lock = tmp_path / "lock"
    for _ in range(100):
        with hold_lock(lock, at=AT, what="tests"):
            pass
    assert len(list(lock.iterdir())) < 40


def test_passing_lock_leaves_nothing_behind_and_is_hidden_from_git(tmp_path: Path) -> None:
    """Also where a process died that held it; meanwhile `git status` does not show it."""
    lock = tmp_path / ".values.csv.lock"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    leave(lock, host=this_host(), pid=1)
    with hold_lock(lock, at=AT, what="exports", passing=True):
        assert is_lock_held(lock)
        with pytest.raises(HeldError):
            hold_lock(lock, at=AT, what="exports", passing=True).__enter__()
        words = ["git", "-C", str(tmp_path), "status", "--porcelain"]
        assert subprocess.run(words, capture_output=True, check=True).stdout == b""
    assert [path.name for path in tmp_path.iterdir()] == [".git"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kept", "passing"])
def test_lock_holds_among_many_processes_of_which_some_die_inside(tmp_path: Path, how: str) -> None:
    """However many rush for it, also over dead ones' claims, never are two inside."""
    lock, log = tmp_path / "lock", tmp_path / "log"
    leave(lock, host=this_host(), pid=1)
    words = [sys.executable, "-c", PROGRAM, str(lock), str(log)]
    rushing = [
        subprocess.Popen([*words, str(dies), how], stderr=subprocess.PIPE, text=True)
        for dies in (0, 0, 0, 3, 7, 11)
    ]
    said = [process.communicate(timeout=120)[1] for process in rushing]
    assert [process.returncode for process in rushing] == [0] * 3 + [9] * 3, said
    assert log.stat().st_size >= 75
    assert not is_lock_held(lock)
    assert how == "kept" or [path.name for path in tmp_path.glob("lock*")] in ([], ["lock"])
