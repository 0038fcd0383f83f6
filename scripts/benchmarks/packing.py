"""Short runs of uneven length on the sandbox: shared jobs, a job each, and static chunks.

Measures the time from the first submission to the last end, compared with the least possible in as
many slots; the runs sleep the same times in each way, drawn once. In a repeated launch the
durations are known, so that the longest runs begin first.
"""

from __future__ import annotations

import heapq
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.commands import SANDBOX_BIN, hpckit, need_sandbox, run, wait_until

RUNS = 200
SLOTS = 16
PER_JOB = 8
MEAN_S = 8.0
DRAWS = 1000
PATIENCE_S = 1800

NOTE = "date +%s.%N >> {folder}/ended"


def bench_packing(folder: Path) -> None:
    """Print the makespan of each way, and its ratio to the lower bound."""
    need_sandbox()
    times = _typical()
    least = _least(times)
    print(f"{RUNS} runs, {sum(times):.0f} s in all, the longest {max(times):.1f} s, {SLOTS} slots")
    shared = f"hpckit, {PER_JOB} runs a job"
    ways: dict[str, Callable[[], float]] = {
        "lower bound": lambda: least,
        "by index, if starts cost nothing": lambda: _in_turn(times),
        shared: lambda: _hpckit(folder / "a", times, packed=True),
        f"{shared}, once more": lambda: _hpckit(folder / "a", times, packed=True),
        "hpckit, a job each": lambda: _hpckit(folder / "b", times, packed=False),
        "plain sbatch, static chunks": lambda: _chunks(folder / "c", times),
    }
    for name, way in ways.items():
        took = way()
        print(f"{name:32}   {took:7.1f} s   {took / least:.2f}", flush=True)


def _typical() -> list[float]:
    """Return the draw closest to the mean of all draws, so that it favours no way."""
    draws = [_drawn(seed) for seed in range(DRAWS)]
    ratios = [(_in_turn(draw) / _least(draw), _in_chunks(draw) / _least(draw)) for draw in draws]
    usual = tuple(map(statistics.mean, zip(*ratios, strict=True)))
    print(
        f"mean of {DRAWS} draws, if starts cost nothing: a free slot takes the next run "
        f"{usual[0]:.2f}, static chunks {usual[1]:.2f}"
    )
    return draws[min(range(DRAWS), key=lambda one: math.dist(ratios[one], usual))]


def _drawn(seed: int) -> list[float]:
    drawn = random.Random(seed)  # noqa: S311  # not for security
    times = [drawn.lognormvariate(0, 1) for _ in range(RUNS)]
    return [round(seconds * MEAN_S * RUNS / sum(times), 2) for seconds in times]


def _least(times: list[float]) -> float:
    """Return the lower bound of the makespan for any order of these runs."""
    return max(*times, sum(times) / SLOTS)


def _in_turn(times: list[float]) -> float:
    """Return the makespan if a free slot takes the next run, and nothing else takes time."""
    slots = [0.0] * SLOTS
    for seconds in times:
        heapq.heapreplace(slots, slots[0] + seconds)
    return max(slots)


def _in_chunks(times: list[float]) -> float:
    """Return the makespan of static chunks, if nothing else takes time."""
    return max(map(sum, _parts(times)))


def _parts(times: list[float]) -> list[list[float]]:
    """Split the runs evenly in their order, as users do by hand."""
    share = len(times) / SLOTS
    return [times[round(n * share) : round((n + 1) * share)] for n in range(SLOTS)]


def _hpckit(folder: Path, times: list[float], *, packed: bool) -> float:
    folder.mkdir(exist_ok=True)
    (folder / "ended").unlink(missing_ok=True)
    script = folder / "run.sh"
    script.write_text(f"sleep $1\n{NOTE.format(folder=folder)}\n")
    words = (
        *("experiment=command", "cluster=sandbox", "code.snapshot=false", "resources.mem_gb=0.05"),
        f"command=[sh,{script},'${{params.seconds}}']",
        f"+params.seconds={','.join(map(str, times))}",
        f"sweep.max_concurrent={SLOTS}",
        *([f"sweep.runs_per_job={PER_JOB}"] if packed else []),
    )
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(folder / "outputs")}
    began = time.time()
    run(hpckit("launch", "-m", "--no-check", "--rerun", *words), env=environ, cwd=folder)
    return _last_end(folder, len(times)) - began


def _chunks(folder: Path, times: list[float]) -> float:
    folder.mkdir()
    for number, part in enumerate(_parts(times)):
        lines = [f"sleep {seconds}\n{NOTE.format(folder=folder)}\n" for seconds in part]
        (folder / f"{number}.sh").write_text("".join(lines))
    words = ("--output=/dev/null", "--mem=50", f"--array=0-{SLOTS - 1}")
    began = time.time()
    wrap = f"--wrap=sh {folder}/$SLURM_ARRAY_TASK_ID.sh"
    run([str(SANDBOX_BIN / "sbatch"), *words, wrap], cwd=folder)
    return _last_end(folder, len(times)) - began


def _last_end(folder: Path, count: int) -> float:
    ended = folder / "ended"
    if not wait_until(lambda: len(_ends(ended)) == count, PATIENCE_S, every_s=0.5):
        sys.exit(f"of {count} runs, {len(_ends(ended))} have ended; the jobs are left as they are")
    return max(_ends(ended))


def _ends(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split()] if path.exists() else []
