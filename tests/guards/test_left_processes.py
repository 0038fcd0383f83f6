"""What a failed test leaves running does not slow the tests after it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from left_processes import end_processes_in


def test_processes_in_a_folder_are_ended_and_no_others(tmp_path: Path) -> None:
    """Those that work there, and those that name it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "other").mkdir()
    wait = ["sh", "-c", "while sleep 0.1; do :; done"]
    works = subprocess.Popen(wait, cwd=tmp_path / "mine")
    names = subprocess.Popen([*wait, str(tmp_path / "mine")])
    other = subprocess.Popen(wait, cwd=tmp_path / "other")
    try:
        assert {works.pid, names.pid} <= {*end_processes_in(tmp_path / "mine")}
        assert (works.wait(), names.wait()) == (-9, -9)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
