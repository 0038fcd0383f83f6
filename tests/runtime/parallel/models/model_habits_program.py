"""One rank of a world whose models and losses do more than pass rows on, beside one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from byte_world import make_run, run_cases
from runtime.parallel.models.odd_models import (
    LENGTH,
    VALUES,
    WIDTH,
    MeasuringUnit,
    OddModel,
    OddUnit,
    batch,
    mean_loss,
)
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpckit import Plan
from hpckit.runtime.rank.parallel_run import ParallelRun

STEPS, ROWS = 3, 8
PARTS: dict[str, Any] = {
    "columns": tuple(f"blocks.*.{one}" for one in ("q", "k", "v", "up")),
    "rows": ("blocks.*.o", "blocks.*.down", "tokens"),
    "sequence": "blocks.*.norm",
}


class Marked(OddModel):
    """Says of some parameters how they are to be optimised, as state space models do."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            if parameter.dim() == 1:
                parameter.no_decay = True  # type: ignore[attr-defined]


class Masked(OddModel):
    """Changes gradients as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens.weight.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: gradient * 0.0
        )


class Bounded(OddModel):
    """Keeps its embeddings short, in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VALUES, WIDTH, max_norm=1.0)


class Sparse(OddModel):
    """Has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VALUES, WIDTH, sparse=True)


class Listed(OddModel):
    """Uses its embedding as the head, by a list that registers it once only."""

    def __init__(self) -> None:
        super().__init__()
        self.head = None
        self.shared = [self.tokens.weight]

    def end(self, hidden: Tensor) -> Tensor:
        """Return the logits."""
        whole = hidden.full_tensor() if isinstance(hidden, DTensor) else hidden
        return whole @ self.shared[0].T


class AttentionAhead(OddModel):
    """Has attention in front of its units."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = OddUnit()

    def begin(self, hidden: Tensor) -> Tensor:
        """Return the embeddings, once attended to."""
        attended: Tensor = self.ahead(self.tokens(hidden))
        return attended


class PackagedAttention(nn.Module):
    """Attends by torch's own module, and drops, so that its output cannot be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.dropping = nn.Dropout(0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        taken, _ = self.attention(hidden, hidden, hidden, need_weights=False)
        moved: Tensor = hidden + self.dropping(taken)
        return moved


class Balanced(nn.Module):
    """Keeps a term for the loss, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        inner = F.gelu(self.up(hidden))
        self.term = inner.square().mean()
        moved: Tensor = hidden + self.down(inner)
        return moved


class Averaging(nn.Module):
    """Keeps a running mean of what it is given, and uses it."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(LENGTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(hidden.mean((0, 1)), 0.1)
        moved: Tensor = hidden + self.linear(self.norm(hidden) - self.mean)
        return moved


class Experts(nn.Module):
    """Each position goes through one of two experts; only those that are needed run."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.tokens = torch.zeros(0)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        moved = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            own = (self.tokens >= VALUES // 2) == bool(number)
            if own.any():
                moved[own] = expert(hidden[own])
        return hidden + moved


class Dropped(OddModel):
    """Leaves out its last unit in every step but the first, the same on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Run what this rank has of the model."""
        hidden = self.begin(hidden)
        for block in self.blocks:
            if not (torch.is_grad_enabled() and DROPS[0] and block.number == 3):
                hidden = block(hidden)
        return self.end(hidden)


DROPS = [False]
"""Whether units are left out now."""


class NumberedUnit(OddUnit):
    """A unit that knows its number."""

    number = 0


def dropped() -> nn.Module:
    """Return a model that leaves out a unit."""
    model = Dropped()
    model.blocks = nn.ModuleList(NumberedUnit() for _ in range(4))
    for number, block in enumerate(model.blocks):
        block.number = number  # type: ignore[assignment]
    return model


class Counting(nn.Module):
    """Counts in a small type."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int16))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        if self.training:
            self.seen += 1
        moved: Tensor = hidden + self.linear(hidden) / self.seen
        return moved


class CountedAhead(OddModel):
    """Counts its calls in front of its units: of a pipeline, the first stage has the counter."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: MeasuringUnit | None = MeasuringUnit()

    def begin(self, hidden: Tensor) -> Tensor:
        """Return the embeddings, once they are counted."""
        embedded = super().begin(hidden)
        counted: Tensor = embedded if self.ahead is None else self.ahead(embedded)
        return counted


class Centred(nn.Module):
    """A loss that centres outputs by their running mean."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(VALUES, dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of centred outputs."""
        value = mean_loss(outputs - self.centre, targets)
        with torch.no_grad():
            self.centre.lerp_(outputs.mean((0, 1)), 0.1)
        return value


class Mixture(OddModel):
    """Routes by the tokens themselves."""

    def __init__(self) -> None:
        super().__init__(Experts, 2)

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        """Run the model."""
        for block in self.blocks:
            block.tokens = hidden
        return super().forward(hidden, positions)


def with_units(unit: type[nn.Module]) -> Callable[[], nn.Module]:
    """Return what builds a model of two such units."""
    return lambda: OddModel(unit, 2)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": OddModel,
    "marked": Marked,
    "masked": Masked,
    "bounded": Bounded,
    "sparse": Sparse,
    "listed": Listed,
    "attention ahead": AttentionAhead,
    "packaged attention": with_units(PackagedAttention),
    "balanced": with_units(Balanced),
    "averaging": with_units(Averaging),
    "mixture": Mixture,
    "dropped": dropped,
    "counting": with_units(Counting),
    "counted ahead": CountedAhead,
}


def plan_of(name: str, *, tensor: bool) -> Plan:
    """Return the plan of a model; only those that are cut need to name matrices."""
    first = ("tokens", "ahead") if name.endswith("ahead") else "tokens"
    last = () if name == "listed" else "head"
    plan = Plan(units="blocks.*", first=first, last=last)
    return replace(plan, **PARTS) if tensor else plan


@dataclass(slots=True, kw_only=True)
class Training:
    """A model that is trained in a loop: by a run, or without one as one process would."""

    case: dict[str, Any]
    run: ParallelRun | None
    model: nn.Module
    head: nn.Linear = field(init=False)
    centred: Centred = field(default_factory=Centred)
    teacher: nn.Module | None = None
    temperature: Tensor = field(
        default_factory=lambda: torch.ones(1, dtype=torch.float64, requires_grad=True)
    )

    def __post_init__(self) -> None:
        """Have a head besides the model, the same everywhere."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            self.head = nn.Linear(VALUES, VALUES).double()

    def loss(self, outputs: Tensor, targets: Tensor) -> Any:
        """Return the loss that the case asks for."""
        module: Any = getattr(self.model, "module", self.model)
        match self.case.get("loss", ""):
            case "penalty":
                squares = [parameter.square().sum() for parameter in module.parameters()]
                return mean_loss(outputs, targets) + 0.1 * torch.stack(squares).sum()
            case "balance":
                terms = torch.stack([block.term for block in module.blocks])
                return mean_loss(outputs, targets) + 0.1 * terms.sum()
            case "own head":
                return mean_loss(self.head(outputs), targets)
            case "own head, pair":
                logits = self.head(outputs).flatten(0, 1)
                return F.cross_entropy(logits, targets.flatten(), reduction="sum"), targets.numel()
            case "temperature":
                return mean_loss(outputs / self.temperature, targets)
            case kind:
                return (self.centred if kind == "centred" else mean_loss)(outputs, targets)

    def follow(self, inputs: Tensor) -> None:
        """Run the teacher, with gradients on, and move it towards the model."""
        if self.teacher is not None:
            self.teacher(inputs)
            with torch.no_grad():
                pairs = zip(self.teacher.parameters(), self.model.parameters(), strict=True)
                for one, other in pairs:
                    one.lerp_(other, 0.1)

    def rows(self, step: int) -> tuple[Tensor, Tensor]:
        """Return this side's part of a batch."""
        inputs, targets = batch(step)
        if self.case["model"] == "mixture" and step >= self.case.get("from_step", 0):
            half = torch.arange(len(inputs))[:, None] >= len(inputs) // 2
            inputs = inputs % (VALUES // 2) + half * (VALUES // 2)
        own = slice(None) if self.run is None else self.run.share(len(inputs)).rows
        return inputs[own], targets[own]

    def learn(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Add the gradients of a batch; return its loss."""
        if self.run is not None:
            return self.run.train_step(self.model, inputs, targets, loss=self.loss)
        value: Tensor = self.loss(self.model(inputs), targets)
        torch.autograd.backward(value)
        return value.detach()

    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer that the case asks for."""
        if self.case.get("optimizer") == "LBFGS":
            return torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=2)
        if self.case["model"] != "marked":
            return torch.optim.SGD(self.model.parameters(), lr=0.5)
        groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
        for parameter in self.model.parameters():
            groups[getattr(parameter, "no_decay", False)].append(parameter)
        return torch.optim.AdamW(
            [{"params": ones, "weight_decay": 1.0 - kept} for kept, ones in groups.items()], lr=0.01
        )

    def losses(self) -> list[float]:
        """Train some steps; before the second one comes a batch that raises, if asked for."""
        optimizer, found = self.optimizer(), []
        for step in range(STEPS):
            inputs, targets = self.rows(step)
            DROPS[0] = step > 0
            if step == 1 and self.case.get("bad_batch") and self.run is not None:
                wrong = targets.clone()
                wrong[len(wrong) // 2 :] = 1000
                with suppress(IndexError, RuntimeError):
                    self.learn(inputs, wrong)

            def turn(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                optimizer.zero_grad()
                return self.learn(inputs, targets)

            value: Any = optimizer.step(turn)  # type: ignore[arg-type]
            found.append(float(value))
            self.follow(inputs)
        return found


def tried(case: dict[str, Any]) -> dict[str, Any]:
    """Train by hpckit and by one process; return how far the losses are apart, and ranks."""
    run = make_run(case)

    def build() -> nn.Module:
        return MODELS[case["model"]]().double()

    plan = plan_of(case["model"], tensor="tensor" in case["layout"])
    ours = run.parallelize(build, plan)
    teacher = None
    if case.get("teacher"):
        teacher = run.parallelize(lambda: build().requires_grad_(requires_grad=False), plan)
    training = Training(case=case, run=run, model=ours, teacher=teacher)
    found = training.losses()
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, float(run.evaluate(ours, *batch(50), loss=mean_loss)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        alone = Training(case=case, run=None, model=build())
    expected = alone.losses()
    return {
        "apart": max(abs(one - other) for one, other in zip(found, expected, strict=True)),
        "ranks_apart": max(seen) - min(seen),
    }


if __name__ == "__main__":
    run_cases(tried)
