"""A run that keeps its state, on a real Slurm that is broken under it; and what it lost.

Responsible for the training script, for launching and disturbing it, for reading what it did, and
for a sandbox that is whole before and after; it must not judge what should have happened.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from integration.conftest import PROGRAM, Sandbox
from integration.project import Project

STEPS = 40
"""Of a usual run; a longer one goes on from there with the same losses."""
LONGEST = 400
FINAL = frozenset({"completed", "failed", "cancelled"})

TRAIN = '''
"""Learns nothing, but deterministically; its parameters say what is special about a run."""
import time, torch
from torch.nn.parallel import DistributedDataParallel


class Cargo:
    """State of some size, that may be poisonous: whoever has loaded it dies of it."""

    def __init__(self, run, poisoned, size):
        self.run, self.poisoned, self.bad = run, poisoned, False
        self.weight = torch.zeros(size)

    def state_dict(self):
        first = (self.run.attempt, self.run.round) == (1, 0)
        last = -1 if self.run.step is None else self.run.step
        return {"bad": first and last + 1 == self.poisoned, "weight": self.weight}

    def load_state_dict(self, state):
        self.bad = state["bad"]


def hold(run):
    """Wait for the test, once."""
    waiting, go = run.folder / "waiting", run.folder / "go"
    if not go.exists():
        waiting.touch()
    while not go.exists():
        time.sleep(0.05)


def main(config, run):
    params = config.params
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    cargo = Cargo(run, params.get("poisoned"), params.get("floats", 1))
    run.state(model=model, optimizer=optimizer, cargo=cargo)
    slow = run.attempt <= params.get("slow_attempts", run.attempt)
    for step in run.steps(params.get("steps", 40)):
        if cargo.bad:
            raise ValueError("poisonous state")
        if step == params.get("hold") and run.rank == 1:
            hold(run)
        time.sleep(params.get("pause_s", 0.1) if slow else 0)
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnd:
    """How a round ended, as the supervisor recorded it."""

    attempt: int
    round: int
    action: str
    cause: str | None
    failure: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One run, its project and the sandbox it runs on."""

    sandbox: Sandbox
    project: Project

    @classmethod
    def create(cls, sandbox: Sandbox, folder: Path) -> Training:
        """Write the project into an empty folder."""
        project = Project(folder / "project")
        project.folder.parent.mkdir(parents=True, exist_ok=True)
        project.create()
        project.write("keep.py", TRAIN)
        return cls(sandbox=sandbox, project=project)

    def launch(self, *words: str) -> None:
        """Launch on two nodes, saving every fifth step."""
        self.project.json(
            *("launch", "experiment=function", "entry_point=keep:main", "cluster=sandbox"),
            *("resources.nodes=2", "checkpoint.interval_steps=5", *words),
        )

    def strike(self, *faults: str) -> None:
        """Break something now, by `hpckit chaos`; each argument is one fault."""
        words = [word for fault in faults for word in fault.split()]
        done = self.project.hpckit("chaos", "--yes", "--sandbox", str(PROGRAM), *words)
        assert done.returncode == 0, done.stderr

    def go(self) -> None:
        """Let a run pass that is held at a step, or will be."""
        (self.folder / "go").touch()

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.project.launch_folder() / "runs" / "00000"

    @property
    def run(self) -> dict[str, Any]:
        """What `status` says of the run."""
        (run,) = self.project.look()["runs"]
        return dict(run)

    @property
    def job(self) -> str:
        """The Slurm job of the run."""
        return str(self.run["job"])

    def events(self, kind: str = "", attempt: int | None = None) -> list[dict[str, Any]]:
        """Return what supervisors recorded, oldest first: of one kind, of one attempt."""
        where = "*" if attempt is None else f"{attempt:03d}"
        files = sorted(self.folder.glob(f"attempts/{where}/events.jsonl"))
        found = [
            {"in_attempt": int(file.parent.name), **json.loads(line)}
            for file in files
            for line in file.read_text().splitlines()
        ]
        return [event for event in found if kind in {"", event["event"]}]

    def rounds(self) -> list[RoundEnd]:
        """Return how all rounds ended, oldest first."""
        return [
            RoundEnd(
                attempt=event["in_attempt"],
                round=event["round"],
                action=event["action"],
                cause=(event["failure"] or {}).get("cause"),
                failure=event["failure"] or {},
            )
            for event in self.events("round_ended")
        ]

    def causes(self) -> list[str | None]:
        """Return why each round ended, oldest first; None where it completed."""
        return [ended.cause for ended in self.rounds()]

    def nodes_by_round(self) -> list[tuple[str, ...]]:
        """Return the nodes of each round, oldest first."""
        return [tuple(event["nodes"]) for event in self.events("round_started")]

    def logged(self) -> list[tuple[int, float]]:
        """Return step and loss of every line, oldest first."""
        files = sorted(self.folder.glob("attempts/*/metrics.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [(line["step"], line["loss"]) for line in lines if "loss" in line]

    @property
    def steps(self) -> list[int]:
        """The steps that were done, in that order; those done twice are there twice."""
        return [step for step, _ in self.logged()]

    @property
    def losses(self) -> dict[int, float]:
        """The loss curve: what was logged last for each step."""
        return dict(self.logged())

    def log(self, attempt: int, round_: int, rank: int = 0) -> str:
        """Return what a rank printed."""
        rounds = self.folder / "attempts" / f"{attempt:03d}" / "rounds"
        return (rounds / f"{round_:03d}" / f"rank-{rank:05d}.log").read_text()

    def epochs(self) -> set[int]:
        """Return which attempts' checkpoints there are."""
        manifests = self.folder.glob("checkpoints/step-*/manifest.json")
        return {json.loads(path.read_text())["manifest"]["epoch"] for path in manifests}

    def wait(self, ready: Callable[[], object], what: str, patience_s: float = 120.0) -> None:
        """Wait until it is so, with Slurm's own wait before a requeued job on top."""
        patience_s += self.sandbox.options["cred_expire"]
        self.sandbox.wait_until(ready, what, patience_s=patience_s)

    def wait_for_step(self, step: int, attempt: int = 1) -> None:
        """Wait until an attempt has done a step."""

        def reached() -> bool:
            lines = self.folder.glob(f"attempts/{attempt:03d}/metrics.jsonl")
            return any(f'"step":{step},' in path.read_text() for path in lines)

        self.wait(reached, f"attempt {attempt} has done step {step}")

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of the latest round; the supervisor is on the allocation's first."""
        return self.nodes_by_round()[-1]

    def completed(self, attempts: int = 1, patience_s: float = 120.0) -> dict[str, Any]:
        """Return the run once it is over; it must have completed, in so many attempts."""
        run = self.over(patience_s)
        assert run["state"] == "completed", (run, self.rounds())
        assert run["attempt"] == attempts, (run, self.rounds())
        # 24.11 starts a job that was preempted before once more when it has completed; there is
        # nothing left to do then, and no attempt begins.
        most = attempts - 1 if self.sandbox.options["release"] == "22.05" else attempts
        assert attempts - 1 <= self.restarts(run["job"]) <= most
        return run

    def over(self, patience_s: float = 120.0) -> dict[str, Any]:
        """Return the run once nothing will start it again by itself."""

        def ended() -> bool:
            (run,) = self.project.look()["runs"]
            return run["state"] in FINAL

        self.wait(ended, "the run is over", patience_s)
        return self.run

    def restarts(self, job: str) -> int:
        """Return how often Slurm has started the job anew."""
        said = self.sandbox.slurm("scontrol", "show", "job", job)
        return int(said.partition("Restarts=")[2].split()[0])

    def recovery_s(self) -> list[float]:
        """Return how long it took from each fault to the next step that a new round began."""
        struck = [_time(fault) for fault in self.faults()]
        begun = [_time(event) for event in self.events("step_reached")]
        after = [min((at for at in begun if at > fault), default=None) for fault in struck]
        pairs = zip(struck, after, strict=True)
        return [(at - fault) / timedelta(seconds=1) for fault, at in pairs if at is not None]

    def faults(self) -> list[dict[str, Any]]:
        """Return the faults that happened: planned ones and those struck from outside."""
        marks = sorted(self.folder.glob("chaos/*.json"))
        struck = self.folder / "chaos.jsonl"
        lines = struck.read_text().splitlines() if struck.exists() else []
        return [json.loads(text) for text in [*(mark.read_text() for mark in marks), *lines]]


def _time(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["at"])


def mend(sandbox: Sandbox) -> None:
    """Make everything run again that a test may have broken, and wait until it does."""
    status = sandbox.status()
    if not status["daemons"]["slurmctld"]:
        sandbox.act("start-controller")
    for node in status["nodes"]:
        if not node["link"]:
            sandbox.act("heal-node", node["name"])
        if not node["slurmd"] or "down" in (node["state"] or "down"):
            sandbox.act("revive-node", node["name"])
    wait_for_quiet(sandbox)


def wait_for_quiet(sandbox: Sandbox) -> None:
    """Wait until no job is queued and every node is free: others may use the sandbox, too."""

    def quiet() -> bool:
        jobs = sandbox.slurm("squeue", "--noheader", "--format=%i").split()
        states = sandbox.slurm("sinfo", "--noheader", "--Node", "--format=%T").split()
        return not jobs and set(states) == {"idle"}

    sandbox.wait_until(quiet, "the sandbox is idle", patience_s=240)


def first(losses: dict[int, float], steps: int) -> dict[int, float]:
    """Return the beginning of a loss curve."""
    return {step: loss for step, loss in losses.items() if step < steps}
