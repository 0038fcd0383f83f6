"""Uneven short runs on the sandbox: sharing jobs, a job each, and chunks fixed beforehand.

Responsible for the time from the first submission to the last end, beside the least that any order
could take in as many slots; all three sleep the same times, drawn once.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from benchmarks.commands import SANDBOX_BIN, hpckit, need_sandbox, run, wait_until

RUNS = 200
SLOTS = 16
PER_JOB = 8
MEAN_S = 8.0
PATIENCE_S = 1800

NOTE = "date +%s.%N >> {folder}/ended"


def bench_packing(folder: Path) -> None:
    """Print the makespan of each way, and how many times the lower bound it is."""
    need_sandbox()
    drawn = random.Random(4)  # noqa: S311  # nobody guards anything with it
    times = [round(drawn.lognormvariate(0, 1), 2) for _ in range(RUNS)]
    scale = MEAN_S * RUNS / sum(times)
    times = [round(scale * seconds, 2) for seconds in times]
    least = max(*times, sum(times) / SLOTS)
    print(f"{RUNS} runs, {sum(times):.0f} s in all, the longest {max(times):.1f} s, {SLOTS} slots")
    print(f"lower bound                      {least:7.1f} s   1.00")
    ways = {
        f"hpckit, {PER_JOB} runs a job": lambda: _hpckit(folder / "a", times, packed=True),
        "hpckit, a job each": lambda: _hpckit(folder / "b", times, packed=False),
        "plain sbatch, static chunks": lambda: _chunks(folder / "c", times),
    }
    for name, way in ways.items():
        took = way()
        print(f"{name:30}   {took:7.1f} s   {took / least:.2f}", flush=True)


def _hpckit(folder: Path, times: list[float], *, packed: bool) -> float:
    folder.mkdir()
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
    run(hpckit("launch", "-m", "--no-check", *words), env=environ, cwd=folder)
    return _last_end(folder, len(times)) - began


def _chunks(folder: Path, times: list[float]) -> float:
    """Split the runs evenly in their order, as people do by hand, one chunk after the other."""
    folder.mkdir()
    share = len(times) / SLOTS
    parts = [times[round(n * share) : round((n + 1) * share)] for n in range(SLOTS)]
    for number, part in enumerate(parts):
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
