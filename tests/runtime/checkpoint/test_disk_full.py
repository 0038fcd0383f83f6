"""A full disk: nothing good is lost, and the run goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

FILLER = Path(__file__).with_name("filler.py")
MOUNT = 'mount -t tmpfs -o size="$2" tmpfs "$1" && shift 2 && exec "$@"'


def _namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode == 0


@pytest.fixture
def filled(tmp_path: Path) -> list[dict[str, Any]]:
    """Return what a run on a disk of 4.5 MiB saw, save by save."""
    if not _namespaces():
        pytest.skip("a small disk needs unshare and user namespaces")
    program = [sys.executable, str(FILLER), str(tmp_path)]
    command = ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(tmp_path), "4608k", *program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    seen: list[dict[str, Any]] = json.loads(done.stdout)
    return seen


def test_full_disk_costs_no_good_checkpoint(filled: list[dict[str, Any]]) -> None:
    """Saves are given up while only two are left to fall back on; older ones make room."""
    *saves, end = filled
    kept = [1, 2]
    assert [save["there"] for save in saves] == [
        [1],
        kept,
        kept,
        kept,
        kept,
        [*kept, 6],
        [*kept, 6, 7],
        [6, 7, 8],
    ]
    assert [save["saved"] for save in saves] == [True, True, False, False, False, True, True, True]
    assert end["restored"] == 8


def test_full_disk_is_said(filled: list[dict[str, Any]]) -> None:
    """A save that was given up says so, and says that nothing was lost."""
    warnings = [one["warning"] for one in filled[:-1] if not one["saved"]]
    assert len(warnings) == 3
    for step, warning in enumerate(warnings, start=3):
        assert warning.startswith(f"step {step} was not saved, the disk is full (")
        assert "earlier checkpoints are untouched" in warning
