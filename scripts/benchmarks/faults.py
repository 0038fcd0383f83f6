"""The same fault for hpckit and for other tools: time to the next step, steps done again.

The measurements come from outside: from the lines that the training writes after its steps
(benchmarks/programs/work.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from benchmarks.commands import SANDBOX, need_sandbox, run, slurm, wait_until
from benchmarks.contestants import HPCKIT, RIVALS, Contestant, Job
from benchmarks.scene import Scene

_PATIENCE_S = 180.0
_EARLIEST_STEP = 11
_AFTER_SAVE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a fault: seconds to the next step (None: none came), steps done again."""

    seconds: float | None
    again: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A fault that every contestant gets `rounds` times.

    `strike` injects it and returns the time, or 0 if only its effect shows the time. `spare` nodes
    and `minutes` are what jobs ask for; `mends` is whether nodes must be revived afterwards.
    """

    strike: Callable[[Job], float]
    rounds: int
    minutes: int = 60
    spare: int = 0
    mends: bool = False


def bench_rank(folder: Path) -> None:
    """Kill a rank: SIGKILL on the second node."""
    _contest(folder, Trial(strike=_kill_rank, rounds=3))


def bench_node(folder: Path) -> None:
    """Cut a node's power: its cable goes first, so that no connection is closed."""
    print(f"SlurmdTimeout: {_slurm_setting('SlurmdTimeout')}, {_slurm_setting('AuthInfo')}")
    _contest(folder, Trial(strike=_lose_node, rounds=3, spare=1, mends=True))


def bench_notices(folder: Path) -> None:
    """Preempt with ten seconds of grace, then reach a time limit of two minutes."""
    print("preemption")
    _contest(folder / "preempt", Trial(strike=_preempt, rounds=2))
    print("time limit")
    _contest(folder / "limit", Trial(strike=_time_limit, rounds=1, minutes=2))


def _contest(folder: Path, trial: Trial) -> None:
    need_sandbox()
    folder.mkdir(exist_ok=True)
    for contestant in (HPCKIT, *RIVALS):
        outcomes: list[Outcome] = []
        for number in range(trial.rounds):
            scene = Scene(folder=folder / f"{contestant.name}-{number}").prepare()
            outcomes.append(_one(contestant, scene, trial))
            if outcomes[-1].seconds is None:
                break
        _show(contestant.name, outcomes)


def _one(contestant: Contestant, scene: Scene, trial: Trial) -> Outcome:
    """Inject the fault once for a contestant; the sandbox is intact afterwards."""
    job = contestant.submit(scene, minutes=trial.minutes, spare=trial.spare)
    try:
        if not wait_until(lambda: _ready(scene) or job.ended(), 300) or not _ready(scene):
            return Outcome(seconds=None, note=f"never came to the fault: see {scene.folder}")
        return _after(job, trial.strike)
    finally:
        job.cancel()
        if trial.mends:
            _mend()
        job.wait()


def _ready(scene: Scene) -> bool:
    """Whether the training is far enough, and a few steps past a save."""
    last = scene.last_step()
    return last >= _EARLIEST_STEP and last % scene.save_every == _AFTER_SAVE


def _after(job: Job, strike: Callable[[Job], float]) -> Outcome:
    life = job.scene.done()[-1].life
    began = strike(job)
    told: list[float] = []

    def settled() -> bool:
        if job.scene.done()[-1].life != life:
            return True
        if not told and job.ended():
            told.append(time.time())
        return bool(told)

    wait_until(settled, _PATIENCE_S, every_s=0.2)
    done = job.scene.done()
    later = [step for step in done if step.life != life]
    last = [step for step in done if step.life == life][-1]
    if not later:
        return Outcome(seconds=None, note=_silence(job, told, began or last.at))
    again = max(last.step + 1 - later[0].step, 0)
    return Outcome(seconds=later[0].at - (began or last.at), again=again, note=_detection(job.scene, began))


def _silence(job: Job, told: Sequence[float], since: float) -> str:
    if told:
        return f"the job ended {told[0] - since:.0f} s later, {job.state() or 'forgotten'}"
    return f"not within {_PATIENCE_S:.0f} s; its job is {job.state()}"


def _detection(scene: Scene, began: float) -> str:
    """Return when hpckit considered a node lost, if it did."""
    lost = scene.events("node_lost")
    if not lost:
        return ""
    at = datetime.fromisoformat(lost[-1]["at"]).timestamp()
    return f"noticed after {at - began:.1f} s (silent for {lost[-1]['silent_s']:.1f} s)"


def _kill_rank(job: Job) -> float:
    began = time.time()
    os.kill(job.scene.pid_of(1), signal.SIGKILL)
    return began


def _lose_node(job: Job) -> float:
    name = _node_of_rank_1(job)
    began = time.time()
    run([str(SANDBOX), "cut-node", name])
    run([str(SANDBOX), "kill-node", name])
    return began


def _node_of_rank_1(job: Job) -> str:
    rounds = job.scene.events("round_started")
    return str(rounds[-1]["nodes"][1]) if rounds else job.nodes()[1]


def _preempt(job: Job) -> float:
    nodes = ",".join(job.nodes())
    words = ("-p", "urgent", "-w", nodes, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    began = time.time()
    slurm("sbatch", *words)
    return began


def _time_limit(_job: Job) -> float:
    return 0.0


def _mend() -> None:
    """Bring back every node without a daemon or a link; Slurm may not have missed it yet."""
    words = [str(SANDBOX), "status", "--json"]
    status = json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)
    for node in status["nodes"]:
        if not (node["slurmd"] and node["link"]):
            run([str(SANDBOX), "revive-node", node["name"]])


def _slurm_setting(name: str) -> str:
    lines = slurm("scontrol", "show", "config").splitlines()
    return next(line.partition("=")[2].strip() for line in lines if line.startswith(name))


def _show(name: str, outcomes: Sequence[Outcome]) -> None:
    seconds = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    again = "/".join(str(outcome.again) for outcome in outcomes if outcome.seconds is not None)
    notes = "; ".join(outcome.note for outcome in outcomes if outcome.note)
    if not seconds:
        print(f"{name:10} no further step: {notes}", flush=True)
        return
    spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
    print(f"{name:10} {median(seconds):6.1f} s ({spread})  steps again {again}  {notes}", flush=True)
