"""Whether healthy ranks are blamed: runs of two equal ranks on a machine whose load changes.

Other processes come and go at random and compete with the ranks for the CPUs, one by one, so that
now the one and now the other rank is slower. No rank is slow for good, so none may be named. Last
come longer runs in which one rank does a third more, then twice as much, under the same load, to
show what is found there. A run lasts for a dozen windows of 2 seconds or more: in fewer than five
nothing is ever named.
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
_STEPS = 2500
_LONG = 3
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
    weights = torch.randn(256, 256)
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
    for words, more in (("a third more work", 4), ("twice the work", 12)):
        named = _named(folder, _RUNS, more=more, steps=_STEPS * _LONG)
        print(f"a rank with {words} under the same load: {named}")


def _named(folder: Path, seed: int, *, more: int, steps: int = _STEPS) -> list[tuple[int, float]]:
    """Return the ranks that a run under load named, each with by how much it is slower."""
    over = threading.Event()
    load = threading.Thread(target=_load, args=(random.Random(seed), over))  # noqa: S311
    load.start()
    try:
        name = f"equal{seed}-{more}"
        words = ("launch", "cluster=local", "entry_point=equal:main", f"name={name}", "--wait")
        shape = ("resources.tasks_per_node=2", "code.snapshot=false", "--rerun")
        params = (f"+params.steps={steps}", f"+params.more={more}")
        run(hpckit(*words, *shape, *params), cwd=folder, env=dict(os.environ))
    finally:
        over.set()
        load.join()
    text = run(hpckit("status", name, "--json"), cwd=folder).stdout
    stragglers: list[dict[str, Any]] = json.loads(text)["runs"][0]["stragglers"]
    return [(straggler["rank"], straggler["slower_by"]) for straggler in stragglers]


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
