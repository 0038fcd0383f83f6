"""Damaged checkpoints and killed saves, by the hundred; `HPCKIT_FUZZ` sets how many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import thorough

pytestmark = pytest.mark.training

FUZZ = Path(__file__).with_name("fuzz.py")
CASES = int(os.environ.get("HPCKIT_FUZZ", "200"))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "cases", "ranks"),
    [
        pytest.param("damages", CASES, "1", id="damages", marks=thorough),
        pytest.param("kills", CASES // 2, "1", id="kills", marks=thorough),
        pytest.param("kills", CASES // 8, "2", id="kills-of-two-ranks", marks=thorough),
        pytest.param("kills", CASES // 25, "2", id="few-kills-of-two-ranks"),
    ],
)
def test_fuzz_finds_no_silent_and_no_lost_load(kind: str, cases: int, ranks: str) -> None:
    """What is loaded is always what was saved, and the newest of what is whole."""
    counts = {"damages": "0", "kills": "0"} | {kind: str(cases)}
    options = [word for name, count in counts.items() for word in (f"--{name}", count)]
    command = [sys.executable, "-W", "ignore", str(FUZZ), *options, "--ranks", ranks]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}: cases {cases}, " in done.stdout
    assert done.stdout.count("silent 0, lost 0") == 2
