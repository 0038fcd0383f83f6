"""Whether healthy ranks are blamed: runs of two equal ranks on a machine whose load changes.

Other processes come and go at random and compete with the ranks for the CPUs, one by one, so that
now the one and now the other rank is slower. No rank is slow for good, so none may be named. Last
comes a run in which one rank does a third more, under the same load: that one has to be named.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.commands import hpckit, run

_RUNS = 20
_STEPS = 600
_BUSY = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""

_TRAIN = """
import torch, torch.distributed as dist

def main(config, run):
    torch.set_num_threads(1)
    weights = torch.randn(160, 160)
    more = config.params.more if run.rank == 1 else 0
    for step in run.steps(config.params.steps):
        for _ in range(12 + more):
            weights = torch.tanh(weights @ weights)
        dist.all_reduce(weights)
"""


def bench_stragglers(folder: Path) -> None:
    """Do the runs, and print which ranks were named."""
    (folder / "equal.py").write_text(_TRAIN)
    blamed = [_named(folder, seed, more=0) for seed in range(_RUNS)]
    print(f"{_RUNS} runs of equal ranks under changing load: {sum(map(bool, blamed))} named a rank")
    for seed, one in enumerate(blamed):
        if one:
            print(f"  run {seed}: {one}")
    print(f"a rank with a third more work under the same load: {_named(folder, _RUNS, more=4)}")


def _named(folder: Path, seed: int, *, more: int) -> list[tuple[int, float]]:
    """Return the ranks that a run under load named, each with by how much it is slower."""
    over = threading.Event()
    load = threading.Thread(target=_load, args=(random.Random(seed), over))  # noqa: S311
    load.start()
    try:
        name = f"equal{seed}"
        words = ("launch", "cluster=local", "entry_point=equal:main", f"name={name}", "--wait")
        shape = ("resources.tasks_per_node=2", "code.snapshot=false", "--rerun")
        steps = (f"+params.steps={_STEPS}", f"+params.more={more}")
        run(hpckit(*words, *shape, *steps), cwd=folder, env=dict(os.environ))
    finally:
        over.set()
        load.join()
    text = run(hpckit("status", name, "--json"), cwd=folder).stdout
    stragglers: list[dict[str, Any]] = json.loads(text)["runs"][0]["stragglers"]
    return [(one["rank"], one["slower_by"]) for one in stragglers]


def _load(draw: random.Random, over: threading.Event) -> None:
    """Keep up to three processes busy, each for some tenths of a second to some seconds."""
    busy: list[subprocess.Popen[bytes]] = []
    while not over.wait(draw.uniform(0.1, 1.5)):
        busy = [one for one in busy if one.poll() is None]
        if len(busy) < 3:  # noqa: PLR2004
            seconds = draw.choice((0.2, 0.5, 1.0, 3.0, 6.0))
            busy.append(subprocess.Popen([sys.executable, "-c", _BUSY, str(seconds)]))
    for one in busy:
        one.kill()
        one.wait()
