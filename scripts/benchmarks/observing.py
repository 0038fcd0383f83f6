"""What measuring costs: the same steps with observe=off, default and deep, beside eight fake GPUs.

The rank computes alone on a CPU, so that a step is as long as its work; the agent samples GPUs,
host and steps meanwhile. The order changes with every repeat. hpckit's own part of a step is the
CPU time of the rank from the end of one step's work to the beginning of the next one's, the median
of all steps: a machine that is busy with other things moves whole steps by far more.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median

from benchmarks.commands import hpckit, run
from hpckit.testing.nvml.fake_nvml import FakeNvml

_KINDS = ("off", "default", "deep")
_REPEATS = 4
_STEPS = 1500
_GPUS = 8

_TRAIN = """
import json, os, time
from pathlib import Path

def work(count):
    total = 0
    for number in range(count):
        total += number * number
    return total

def main(config, run):
    steps, began, marks = config.params.steps, None, []
    for step in run.steps(steps):
        if began is None and step > 0:  # the first step warms up
            began = time.perf_counter()
        with run.timed("data"):
            pass
        with run.timed("forward"):
            marks.append(time.thread_time())
            work(100_000)
            marks.append(time.thread_time())
    wall = time.perf_counter() - began
    own = sorted(after - before for before, after in zip(marks[1::2], marks[2::2]))
    work_s = sorted(after - before for before, after in zip(marks[::2], marks[1::2]))
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    resident = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    said = {
        "step_s": wall / (steps - 1),
        "own_s": own[len(own) // 2],
        "work_s": work_s[len(work_s) // 2],
        "ran_s": wall,
        "agent_cpu_s": (int(fields[11]) + int(fields[12])) / ticks,
        "agent_mib": int(resident) / 1024,
    }
    Path(config.params.out).write_text(json.dumps(said))
"""


def bench_observing(folder: Path) -> None:
    """Do some runs of each kind in turn, and print medians beside those of observe=off."""
    fake = FakeNvml(folder)
    fake.build()
    fake.profile("h100", gpus=_GPUS)
    for gpu in range(_GPUS):
        fake.load(gpu, {0: 0.8})
    (folder / "observed.py").write_text(_TRAIN)
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in _KINDS}
    for repeat in range(_REPEATS):
        for kind in _KINDS if repeat % 2 == 0 else reversed(_KINDS):
            found[kind].append(_one(folder, fake, kind))
    without = _median(found["off"], "own_s")
    print("observe    work ms   hpckit us   more than off, of the work   agent CPU   agent MiB")
    for kind, rows in found.items():
        work, own = _median(rows, "work_s"), _median(rows, "own_s")
        agent = median(row["agent_cpu_s"] / row["ran_s"] for row in rows)
        print(
            f"{kind:8} {work * 1e3:9.3f} {own * 1e6:11.1f}   {(own - without) / work:26.3%}"
            f"   {agent:9.2%}   {_median(rows, 'agent_mib'):9.1f}"
        )


def _one(folder: Path, fake: FakeNvml, kind: str) -> dict[str, float]:
    out = folder / "said.json"
    out.unlink(missing_ok=True)
    words = hpckit(
        *("launch", "cluster=local", "entry_point=observed:main", f"observe={kind}", "--wait"),
        "resources.tasks_per_node=1",
        *(f"+params.steps={_STEPS}", f"+params.out={out}", "--rerun", "code.snapshot=false"),
    )
    run(words, cwd=folder, env={**os.environ, **fake.environ})
    said: dict[str, float] = json.loads(out.read_text())
    return said


def _median(rows: list[dict[str, float]], name: str) -> float:
    return median(row[name] for row in rows)
