"""Saving in the background of training: hpckit's thread, torch's thread and torch's process.

They take turns in one run of two ranks of `programs/background.py`; the result is a table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.commands import on_path
from benchmarks.scene import PROGRAMS

_RANKS = 2
_COLUMNS = "tensors  steps    way            standstill  until done  training time lost"


def bench_background(folder: Path) -> None:
    """Compare the three ways, with steps that sleep, multiply matrices, or hold the GIL."""
    print(_COLUMNS)
    for state in ("few", "many"):
        for line in _two_ranks(folder / state, state):
            lost = "-"
            if line["kind"] != "first":
                low, high = line["lost_range_s"]
                lost = f"{line['lost_s']:.2f} s ({low:.2f} to {high:.2f})"
            print(
                f"{state:7}  {line['kind']:7}  {line['way']:13}  {line['stall_s']:8.3f} s"
                f"  {line['until_s']:8.2f} s  {lost}",
                flush=True,
            )


def _two_ranks(folder: Path, state: str) -> list[dict[str, Any]]:
    environ = on_path() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29641"}
    words = [sys.executable, "-W", "ignore", str(PROGRAMS / "background.py"), str(folder), state]
    with (folder.with_suffix(".log")).open("w") as log:
        ranks = [
            subprocess.Popen(
                words,
                env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            for rank in range(_RANKS)
        ]
        printed = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(folder.with_suffix(".log").read_text()[-2000:])
    return [json.loads(line) for line in printed[0].splitlines()]
