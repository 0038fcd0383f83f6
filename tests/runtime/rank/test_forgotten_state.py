"""What trains a registered model, and would begin afresh after a restart, is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runtime.conftest import Workshop, ranks
from torch.optim import lr_scheduler as schedulers

from hpckit.model.launch import Checkpoint
from hpckit.model.states import RunState
from hpckit.runtime.rank.parameters import warn_of_unregistered_optimizers

pytestmark = pytest.mark.training

SCRIPT = """
import hpckit, torch
run = hpckit.attach()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(model.parameters())
run.state(model=model)
for step in run.steps(6):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def test_run_tells_of_an_optimizer_that_is_not_registered(workshop: Workshop) -> None:
    """Once, in `status`; with a single save nobody can know yet that it is in use."""
    started = {"entry_point": None, "command": "python task.py"}
    settings = ranks(1, checkpoint=Checkpoint(interval_steps=2), **started)
    ended = workshop.attempt(SCRIPT, **settings)
    assert ended.record.state is RunState.completed, ended.output
    words = [sys.executable, "-m", "hpckit", "status", str(ended.launch.folder)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert shown.count("Adam of `model` is not registered") == 1, shown


class Training:
    """A model that is trained, and what a save tells of it."""

    def __init__(self) -> None:
        self.model: Any = torch.nn.Linear(2, 2)
        self.optimizer: Any = torch.optim.Adam(self.model.parameters())
        self.stepping: list[Any] = [self.optimizer]

    def sequence(self) -> Any:
        """Return a scheduler that steps others."""
        inner = [schedulers.LinearLR(self.optimizer), schedulers.StepLR(self.optimizer, 9)]
        outer = schedulers.SequentialLR(self.optimizer, inner, [2])
        self.stepping.append(outer)
        return schedulers.ChainedScheduler([outer], optimizer=self.optimizer)

    def steps(self, scheduler: Any) -> Any:
        """Return the scheduler, which is to be stepped."""
        self.stepping.append(scheduler)
        return scheduler

    def train(self) -> None:
        """Do a step."""
        self.model(torch.ones(1, 2)).sum().backward()
        for part in self.stepping:
            part.step()

    def told(self, **registered: Any) -> list[str]:
        """Return the types that are warned of after two saves."""
        told: list[str] = []
        looks = warn_of_unregistered_optimizers({"model": self.model, **registered}, told.append)
        for _ in range(2):
            self.train()
            next(looks)
        return sorted({words.partition(" ")[0] for words in told})


class Saver:
    """An object of the user's own; nobody knows what it saves."""

    def state_dict(self) -> dict[str, Any]:
        """Return what it saves."""
        return {}


class Keeper(torch.nn.Module):
    """A module that keeps its optimizer."""

    def get_extra_state(self) -> dict[str, Any]:
        """Return what it saves."""
        return {}


class Outer(torch.optim.Optimizer):
    """An optimizer that steps another one, whose groups it shares."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})


def with_scheduler(training: Training) -> dict[str, Any]:
    """Register only the optimizer."""
    training.steps(schedulers.StepLR(training.optimizer, 9))
    return {"optimizer": training.optimizer}


def without_optimizer(training: Training) -> dict[str, Any]:
    """Register the scheduler, whose state does not hold the optimizer's."""
    return {"scheduler": training.steps(schedulers.StepLR(training.optimizer, 9))}


def with_nested(training: Training) -> dict[str, Any]:
    """Register neither of several schedulers in one."""
    training.kept = training.sequence()  # type: ignore[attr-defined]
    return {"optimizer": training.optimizer}


def with_optimizer_in_module(training: Training) -> dict[str, Any]:
    """Let the module hold its optimizer, which its state does not."""
    training.model.optimizer = training.optimizer
    return {}


def with_wrapped(training: Training) -> dict[str, Any]:
    """Register neither an optimizer nor the one within it."""
    training.outer = Outer(training.optimizer)  # type: ignore[attr-defined]
    return {}


@pytest.mark.parametrize(
    ("register", "told"),
    [
        (lambda _: {}, ["Adam"]),
        (with_scheduler, ["StepLR"]),
        (without_optimizer, ["Adam"]),
        (with_optimizer_in_module, ["Adam"]),
        (with_wrapped, ["Outer"]),
    ],
)
def test_forgotten_state_is_told(register: Callable[[Training], dict[str, Any]], told: list[str]) -> None:
    """What goes on between two saves and is in neither of them."""
    training = Training()
    assert training.told(**register(training)) == told


def test_outermost_scheduler_is_told() -> None:
    """It is the one to be registered."""
    training = Training()
    chain = training.sequence()
    training.stepping[1:] = [chain]
    assert training.told(optimizer=training.optimizer) == ["ChainedScheduler"]


def keeps_nested(training: Training) -> dict[str, Any]:
    """Register the outermost of several schedulers."""
    return {"optimizer": training.optimizer, "scheduler": training.sequence()}


def warms_up(training: Training) -> dict[str, Any]:
    """Train before the loop with another optimizer."""
    training.train()
    training.warm = training.optimizer  # type: ignore[attr-defined]
    training.optimizer = torch.optim.SGD(training.model.parameters(), momentum=0.9)
    training.stepping = [training.optimizer]
    return {"optimizer": training.optimizer}


def has_no_state(training: Training) -> dict[str, Any]:
    """Train with an optimizer that loses nothing."""
    training.stepping = [torch.optim.SGD(training.model.parameters())]
    return {}


def wraps(training: Training) -> dict[str, Any]:
    """Register the optimizer that holds the one with the state."""
    return {"optimizer": Outer(training.optimizer)}


def averages(training: Training) -> dict[str, Any]:
    """Register an average, and a scaler, too."""
    average = torch.optim.swa_utils.AveragedModel(training.model)
    scaler = torch.amp.GradScaler("cpu")
    return {"average": average, "scaler": scaler, "optimizer": training.optimizer}


@pytest.mark.parametrize(
    "register",
    [
        keeps_nested,
        warms_up,
        has_no_state,
        wraps,
        averages,
        lambda _: {"keeper": Keeper()},
        lambda _: {"own": Saver()},
        lambda _: {"own": SimpleNamespace(state_dict=dict)},
    ],
)
def test_state_that_is_kept_or_no_longer_used_is_not_told(
    register: Callable[[Training], dict[str, Any]],
) -> None:
    """Nothing is told in doubt."""
    training = Training()
    assert training.told(**register(training)) == []


def test_forgotten_optimizer_is_not_kept_alive() -> None:
    """Its state may fill a GPU."""
    training = Training()
    told: list[str] = []
    looks = warn_of_unregistered_optimizers({"model": training.model}, told.append)
    for _ in range(2):
        training.train()
        next(looks)
    del training.optimizer
    training.stepping.clear()
    told.clear()
    next(looks)
    assert not told
