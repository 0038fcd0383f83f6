"""Steps of `run.train_step` beside torch written by hand, in each layout; saving and resharding.

Four gloo ranks on this machine: what hpckit adds to a step, not how fast a layout is. Wall time
holds whatever else the machine does; CPU time of all ranks together hardly does.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.commands import SCRIPTS, on_path, run

_RANKS = 4
_PAIRS = 120
_REPEATS = 5
_MIB = 2**20
_PROGRAMS = Path(__file__).parent / "programs"
_CHECKED = (
    {"shard": 1024},
    {"replicate": 4, "shard": 32, "tensor": 8},
    {"replicate": 2, "pipeline": 16, "shard": 4, "tensor": 8},
    {"replicate": 128, "context": 8},
)


def bench_layouts(folder: Path) -> None:
    """Compare steps, then saving and loading in another layout; then check 1024 ranks."""
    print(
        "layout          wall: hpckit  by hand  ratio (quartiles)    CPU: ratio (quartiles)"
        "    sent: hpckit, by hand"
    )
    for row in _world(folder):
        print(_steps_line(row) if "layout" in row else _move_line(row), flush=True)
    print("check of 1024 ranks, a model of 32 blocks: CPU seconds beside those of importing torch")
    for sizes in _CHECKED:
        words = [sys.executable, str(_PROGRAMS / "layout_check.py"), json.dumps(sizes)]
        one = json.loads(run(words).stdout)
        what = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        print(f"{what:50} {one['check_s']:5.2f} s   import {one['import_s']:5.2f} s")


def _world(folder: Path) -> Iterator[dict[str, Any]]:
    """Run the ranks; yield what rank 0 prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {
        **on_path(SCRIPTS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(_RANKS),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    words = [sys.executable, str(_PROGRAMS / "layout_steps.py"), str(folder)]
    words += [str(_PAIRS), str(_REPEATS)]
    ranks = [
        subprocess.Popen(
            words,
            env={**environ, "RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=(folder / f"rank-{rank}.log").open("w"),
            text=True,
        )
        for rank in range(_RANKS)
    ]
    assert ranks[0].stdout is not None  # noqa: S101  # as just asked
    yield from map(json.loads, ranks[0].stdout)
    if any([rank.wait() for rank in ranks]):  # noqa: C419  # all of them are waited for
        sys.exit("a rank failed:\n" + (folder / "rank-0.log").read_text())


def _steps_line(row: dict[str, Any]) -> str:
    ours, theirs = row["wall_s"]
    sent, theirs_sent = map(median, row["sent_mib"])
    return (
        f"{row['layout']:15} {median(ours) * 1000:9.0f} ms {median(theirs) * 1000:6.0f} ms"
        f"  {_ratio(ours, theirs)}    {_ratio(*row['cpu_s'])}"
        f"    {sent:.1f}, {theirs_sent:.1f} MiB"
    )


def _ratio(ours: list[float], theirs: list[float]) -> str:
    """Return the median of the ratios of pairs of steps, and their quartiles."""
    each = [one / other for one, other in zip(ours, theirs, strict=True)]
    low, middle, high = quantiles(each, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def _move_line(row: dict[str, Any]) -> str:
    parts = []
    for who in ("hpckit", "torch"):
        saved, loaded, size = (median(one) for one in zip(*row[who], strict=True))
        parts.append(f"{who} save {saved:.2f} s, load {loaded:.2f} s, {size / _MIB:.2f} MiB")
    return f"{row['from']:>13} to {row['to']:13} {'; '.join(parts)}"
