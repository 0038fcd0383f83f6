"""One rank of a world whose models, losses and units draw numbers, from any generator."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from byte_world import make_run, run_cases
from torch import Tensor, nn

import hpckit
from hpckit.model.parallel.plan import Plan
from hpckit.runtime import generators
from hpckit.runtime.rank.parallel_run import ParallelRun

WIDTH, STEPS, RESTART = 8, 4, 2
SOURCES: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy": lambda: float(np.random.rand()),  # noqa: NPY002  # what user code draws from
    "torch": lambda: float(torch.rand(())),
    "none": lambda: 0.75,
    "system": lambda: os.urandom(1)[0] / 256,
}


class Block(nn.Module):
    """Adds a part that is dropped at random, if its source draws."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this block, [rows, width]."""
        factor = SOURCES[self.source]()
        moved: Tensor = hidden + self.down(F.gelu(self.up(factor * hidden)))
        return moved


class Model(nn.Module):
    """Blocks between two layers, a buffer and a parameter that are drawn when it is built."""

    waves: Tensor

    def __init__(self, unit: str = "none", buffer: str = "none", parameter: str = "none") -> None:
        super().__init__()
        waves = [[SOURCES[buffer]() for _ in range(4)] for _ in range(2)]
        self.register_buffer("waves", torch.tensor(waves))
        self.first: nn.Module | None = nn.Linear(4, WIDTH)
        self.blocks = nn.ModuleList(Block(unit) for _ in range(2))
        self.head: nn.Module | None = nn.Linear(WIDTH, 1)
        nn.init.constant_(self.head.bias, SOURCES[parameter]())

    def forward(self, hidden: Tensor) -> Tensor:
        """Return a number for each row, or what a part of the model makes."""
        if self.first is not None:
            hidden = self.first(torch.sin(hidden @ self.waves))
        for block in self.blocks:
            hidden = block(hidden)
        return hidden if self.head is None else self.head(hidden)


PLAN = Plan(units="blocks.*", first="first", last="head", columns="blocks.*.up", rows="blocks.*.down")


class Training:
    """A model in a layout, and what a step of it does."""

    def __init__(self, run: ParallelRun, case: Mapping[str, Any]) -> None:
        drawn = {key: case[key] for key in ("unit", "buffer", "parameter") if key in case}
        init = fill(SOURCES[case["init"]]) if "init" in case else None
        self.run, self.source = run, case.get("loss", "none")
        self.model = run.parallelize(lambda: Model(**drawn).double(), PLAN, init=init)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return a mean with a factor that is drawn."""
        return F.mse_loss(outputs, targets * SOURCES[self.source]())

    def step(self, number: int) -> float:
        """Train a step; return its loss."""
        rows = torch.randn(8, 2, generator=torch.Generator().manual_seed(number)).double()
        rows = rows[self.run.share(8).rows]
        self.optimizer.zero_grad()
        value = self.run.train_step(self.model, rows, rows.sum(1, keepdim=True), loss=self.loss)
        self.optimizer.step()
        return float(value)


def fill(draw: Callable[[], float]) -> Callable[[str, nn.Module], None]:
    """Return an init that fills what a module has by numbers that are drawn."""

    def init(name: str, module: nn.Module) -> None:
        del name
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        for one in own:
            one.view(-1).copy_(torch.tensor([0.5 * draw() - 0.25 for _ in range(one.numel())]))

    return init


def trained(case: dict[str, Any]) -> dict[str, Any]:
    """Return the losses of a training, and those of one that goes on from its middle.

    The second one begins as a new process does, with all of hpckit's looks at the user's code.
    """
    run = make_run(case)
    generators.seed_all_generators(100 + run.data_rank)  # as for augmentations of each rank's own
    before = drawn_next()
    generators.seed_all_generators(100 + run.data_rank)
    training = Training(run, case)
    kept = drawn_next() == before
    generators.seed_all_generators(100 + run.data_rank)
    losses, state = [], {}
    for number in range(STEPS):
        if number == RESTART:
            state = {name: one.clone() for name, one in training.model.state_dict().items()}
            at = generators.state_dict()
        losses.append(training.step(number))
    again = Training(run, case)
    again.model.load_state_dict(state)
    generators.load_state_dict(at)
    continued = [again.step(number) for number in range(RESTART, STEPS)]
    return {"losses": losses, "continued": continued, "kept": kept, "version": hpckit.__version__}


def drawn_next() -> list[float]:
    """Return what each generator gives next."""
    return [SOURCES[name]() for name in ("random", "numpy", "torch")]


if __name__ == "__main__":
    run_cases(trained)
