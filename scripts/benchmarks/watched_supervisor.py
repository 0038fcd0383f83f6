"""Runs `hpckit WORDS…`, notes its peak memory, and can make appends slow.

Called as `python -m benchmarks.watched_supervisor FILE APPEND_MS WORDS…`. The supervisor in it is
the real one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from hpckit.cli.main import main


def slow_down_appends(append_s: float) -> None:
    """Delay each opening of a file for appending by `append_s`, as on a network file system."""
    open_file = os.open

    def open_slowly(path: Any, flags: int, *others: Any, **named: Any) -> int:
        if flags & os.O_APPEND:
            time.sleep(append_s)
        return open_file(path, flags, *others, **named)

    os.open = open_slowly


def peak_mb() -> float:
    """Return the peak resident memory of this process, in MB."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def run() -> int:
    """Run the words; return their exit code."""
    file, append_ms, *words = sys.argv[1:]
    if float(append_ms):
        slow_down_appends(float(append_ms) / 1000)
    try:
        return main(words)
    finally:
        Path(file).write_text(str(peak_mb()), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run())
