"""What a short run costs on one machine: its ranks forked after imports, or each its own Python.

A sweep of short runs, two ranks each, one after another; both ways take turns.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import statistics
import time
from pathlib import Path

from benchmarks.commands import hpckit, run

RUNS = 6
TURNS = 3
_SET_CHILD_SUBREAPER = 36
_PROGRAM = """
import torch

def train(config, run):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    run.state(model=model, optimizer=optimizer)
    for _ in run.steps(3):
        optimizer.zero_grad()
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
"""


def bench_starts(folder: Path) -> None:
    """Compare time and processor time of a sweep of short runs."""
    (folder / "short.py").write_text(_PROGRAM)
    spent: dict[str, list[tuple[float, float]]] = {"true": [], "false": []}
    for _ in range(TURNS):
        for way, found in spent.items():
            found.append(_sweep(folder, way))
    forked, own = (
        [statistics.median(column) / RUNS for column in zip(*spent[way], strict=True)]
        for way in ("true", "false")
    )
    print("a run of two ranks and three steps   forked   own Pythons   ratio")
    for what, one, other in zip(("time", "processor time"), forked, own, strict=True):
        print(f"{what:35}  {one:5.2f} s  {other:10.2f} s  {one / other:6.2f}")


def _sweep(folder: Path, way: str) -> tuple[float, float]:
    """Return the seconds and the processor seconds of a sweep."""
    seeds = ",".join(str(seed) for seed in range(RUNS))
    words = hpckit("launch", "--rerun", "cluster=local", "experiment=function", "resources=cpu_pair")
    words += ["entry_point=short:train", "code.snapshot=false", "cluster.max_parallel=1"]
    words += [f"runtime.preload_torch={way}", f"seed={seeds}", "-m", "--wait"]
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(folder / "outputs")}
    # A launch detaches: what it starts comes back to this process, and is counted then.
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    before, began = _spent(), time.monotonic()
    run(words, cwd=folder, env=environ)
    took = time.monotonic() - began
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return took, _spent() - before


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
