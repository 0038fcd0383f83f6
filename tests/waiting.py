"""Waiting for what another process does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpckit.record.process import read_process_start_id

LIMIT_S = 200.0
"""Less than the time limit of a test, which tells less."""


def until(look: Callable[[], Any]) -> Any:
    """Wait for what `look` finds, and return it."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return found


def run_to_end(
    words: Sequence[str | Path], *, timeout: float = LIMIT_S, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program until it has ended; return its exit code and what it printed, as text."""
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=check, **more)


def until_ended(pid: int) -> None:
    """Wait until a process of this host has ended; a zombie has."""
    until(lambda: read_process_start_id(pid) is None)


def until_here(process: Any, folder: Path, ranks: int) -> None:
    """Wait until each of these ranks has touched its file `here-RANK`."""
    deadline = time.monotonic() + 90
    while not all((folder / f"here-{rank}").exists() for rank in range(ranks)):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
