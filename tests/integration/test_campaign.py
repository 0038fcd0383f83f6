"""A campaign: runs on a real Slurm, random faults at random steps, and the losses they must have.

`scripts/test --campaign N` makes N runs of it; HPCKIT_CAMPAIGN_SEED repeats one, and
HPCKIT_CAMPAIGN_FAULTS="rank told to stop,job suspended" takes these alone, one a run, in turn.
No run is told what will strike it, and none may end otherwise than complete, with losses equal
bit by bit to those of a run that nothing happened to.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from campaign_programs import FILES, STEPS, WORDS, logged
from integration.conftest import Sandbox
from integration.training import Training, mend, wait_for_quiet

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

TRIALS = int(os.environ.get("HPCKIT_CAMPAIGN", "0"))
SEED = int(os.environ.get("HPCKIT_CAMPAIGN_SEED", "0"))
CHOSEN = tuple(filter(None, os.environ.get("HPCKIT_CAMPAIGN_FAULTS", "").split(",")))
"""Names of the faults to take in turn; all of them are drawn from when none are chosen."""
NO_MORE_RESUMES = 3
"""An engineer who looks after the run resumes it this often; more would hide a fault of ours."""


@dataclass(slots=True, kw_only=True)
class Striker:
    """One run and the means to hurt it."""

    training: Training
    draw: random.Random

    def chaos(self, *words: str) -> None:
        """Inject one fault by `hpckit chaos`; one that finds nothing to hit is no fault."""
        program = str(Path(__file__).parents[2] / "scripts" / "slurm-sandbox")
        self.training.project.hpckit("chaos", "--yes", "--sandbox", program, *words)

    def slurm(self, *words: str) -> None:
        """Ask the sandbox's Slurm for something, whatever it answers."""
        self.training.sandbox.try_slurm(*words)

    def signal(self, name: str) -> None:
        """Send a signal to one rank that `hpckit chaos` has no word for."""
        rank = f"rank={self.draw.randrange(2)}"
        found = self.training.project.hpckit("chaos", "--dry-run", "kill", rank).stdout
        pid = re.search(r"pid (\d+)", found)
        if pid is not None:
            os.kill(int(pid[1]), signal.Signals[name])

    def stop_for(self, seconds: float, *whom: str) -> None:
        """Stop a process for so long."""
        self.chaos("stop", *whom)
        time.sleep(seconds)
        self.chaos("cont", *whom)

    def suspend(self, seconds: float) -> None:
        """Suspend the whole job for so long, as gang scheduling does."""
        self.slurm("scontrol", "suspend", self.training.job)
        time.sleep(seconds)
        self.slurm("scontrol", "resume", self.training.job)

    def cut(self, seconds: float) -> None:
        """Pull the cable of one of the run's nodes for so long."""
        node = f"node={self.draw.choice(self.training.nodes())}"
        self.chaos("cut_node", node)
        time.sleep(seconds)
        self.chaos("heal_node", node)

    def power_off(self) -> None:
        """Take the power from one of the run's nodes."""
        self.chaos("kill_node", f"node={self.draw.choice(self.training.nodes())}")

    def without_controller(self, seconds: float) -> None:
        """Kill a rank while no controller answers."""
        self.chaos("stop_controller")
        time.sleep(seconds)
        self.chaos("kill", "rank=0")
        self.chaos("start_controller")


FAULTS: dict[str, Callable[[Striker], None]] = {
    "rank killed": lambda one: one.chaos("kill", "rank=1"),
    "rank 0 killed": lambda one: one.chaos("kill", "rank=0"),
    "rank crashed": lambda one: one.chaos("segfault", "rank=1"),
    "rank told to stop": lambda one: one.chaos("term", f"rank={one.draw.randrange(2)}"),
    "rank sent SIGUSR1": lambda one: one.signal("SIGUSR1"),
    "rank sent SIGUSR2": lambda one: one.signal("SIGUSR2"),
    "rank stopped for a moment": lambda one: one.stop_for(3, "rank=1"),
    "agent killed": lambda one: one.chaos("kill", "agent", "rank=1"),
    "agent told to stop": lambda one: one.chaos("term", "agent", "rank=1"),
    "agent stopped for a moment": lambda one: one.stop_for(3, "agent", "rank=1"),
    "supervisor killed": lambda one: one.chaos("kill", "supervisor"),
    "supervisor stopped": lambda one: one.stop_for(72, "supervisor"),
    "job suspended": lambda one: one.suspend(40),
    "job requeued": lambda one: one.chaos("requeue"),
    "job preempted": lambda one: one.chaos("preempt", "partition=urgent"),
    "step cancelled": lambda one: one.slurm("scancel", f"{one.training.job}.0"),
    "node off": Striker.power_off,
    "node cut for a moment": lambda one: one.cut(3),
    "node cut": lambda one: one.cut(20),
    "controller away": lambda one: one.without_controller(3),
}


@pytest.fixture(scope="module")
def calm(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, float]]:
    """Return the losses that nothing disturbed, by the way of training."""
    losses = {}
    for way in WORDS:
        training = begin(sandbox, tmp_path_factory.mktemp(way), way)
        training.completed()
        losses[way] = dict(logged(training.folder))
        assert sorted(losses[way]) == list(range(STEPS))
    return losses


@pytest.fixture
def whole(sandbox: Sandbox) -> Iterator[Sandbox]:
    """Return a sandbox on which everything works, and leave it so."""
    wait_for_quiet(sandbox)
    yield sandbox
    if not sandbox.status()["daemons"]["slurmctld"]:
        sandbox.act("start-controller")
    mend(sandbox)


def begin(sandbox: Sandbox, folder: Path, way: str) -> Training:
    """Launch a run that trains in this way, on two nodes."""
    training = Training.create(sandbox, folder)
    for name, text in FILES.items():
        training.project.write(name, text)
    training.project.json(
        *("launch", *WORDS[way], "cluster=sandbox", "resources.nodes=2"),
        *("checkpoint.interval_steps=5", "runtime.hang_min_s=20"),
    )
    return training


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What happens to one run: how it trains, and which fault strikes it after which step."""

    number: int
    way: str
    strikes: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        struck = ", ".join(f"{fault} after step {step}" for step, fault in self.strikes)
        return f"{self.number}: {self.way}, {struck}"


def drawing(number: int) -> random.Random:
    """Return the random numbers of one trial of this campaign."""
    return random.Random(SEED * 1_000_003 + number)  # noqa: S311  # repeatable, and no secret


def drawn(number: int) -> Trial:
    """Return a trial; the same for the same seed and number."""
    draw = drawing(number)
    faults = draw.sample(list(FAULTS), k=draw.choice((1, 1, 2)))
    way = draw.choice(list(WORDS))
    if CHOSEN:
        turn, place = divmod(number, len(WORDS))
        faults, way = [CHOSEN[turn % len(CHOSEN)]], list(WORDS)[place]
    steps = sorted(draw.sample(range(2, STEPS - 5), k=len(faults)))
    strikes = tuple(zip(steps, faults, strict=True))
    return Trial(number=number, way=way, strikes=strikes)


@pytest.mark.parametrize("trial", [drawn(number) for number in range(TRIALS)], ids=str)
def test_campaign_leaves_every_run_complete_and_bitwise_equal(
    whole: Sandbox, calm: dict[str, dict[int, float]], tmp_path: Path, trial: Trial
) -> None:
    """Whatever strikes a run, it does its last step, with the losses of an undisturbed one."""
    training = begin(whole, tmp_path, trial.way)
    striker = Striker(training=training, draw=drawing(trial.number))
    for step, fault in trial.strikes:
        wait_for_step(training, step)
        FAULTS[fault](striker)
    state = see_through(training)
    assert state == "completed", (training.run, training.rounds())
    lines = list(logged(training.folder))
    assert {step for step, _ in lines} == set(range(STEPS))
    wrong = [(step, loss) for step, loss in lines if loss != calm[trial.way][step]]
    assert not wrong


def wait_for_step(training: Training, step: int) -> None:
    """Wait until a step has been done, or the run has ended without it."""

    def reached() -> bool:
        return any(done >= step for done, _ in logged(training.folder)) or ended(training)

    training.wait(reached, f"step {step} has been done")


def ended(training: Training) -> bool:
    """Return whether the run has ended for good."""
    return training.run["state"] in {"completed", "failed", "cancelled"}


def see_through(training: Training) -> str:
    """Return the final state of a run, after resuming it as who looks after it would."""
    for _ in range(NO_MORE_RESUMES):
        training.wait(
            lambda: training.run["state"] not in {"pending", "running"} and settled(training),
            "the run is over or waits for us",
            patience_s=300,
        )
        if ended(training):
            break
        training.project.hpckit("resume")
    return str(training.run["state"])


def settled(training: Training) -> bool:
    """Return whether the run has ended, or Slurm has none of its jobs any more."""
    if ended(training):
        return True
    listed = training.sandbox.try_slurm("squeue", "--noheader", "--format=%T", "--jobs", training.job)
    return not listed.stdout.split()
