"""Models as people write them, which layouts compute wrongly unless somebody looks.

Each runs in a world of ranks, and in one process that has the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor, nn

from hpckit import Plan

WIDTH, VALUES, LENGTH, HEADS = 16, 8, 8, 2


class OddUnit(nn.Module):
    """Attention and a feed-forward pair: [rows, length, width] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        query, key, value = (
            part(self.norm(hidden)).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        taken = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.o(taken.transpose(1, 2).flatten(2))
        moved: Tensor = hidden + self.down(F.gelu(self.up(hidden)))
        return moved


class MeasuringUnit(nn.Module):
    """Counts its calls, and keeps a running mean of what it is given."""

    calls: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.seen = 0

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        self.calls += 1
        self.seen += 1
        with torch.no_grad():
            self.mean.lerp_(hidden.mean((0, 1)), 0.1)
        moved: Tensor = hidden + self.down(F.gelu(self.up(hidden)))
        return moved


class OddModel(nn.Module):
    """Tokens [rows, length] to logits [rows, length, values]."""

    def __init__(self, unit: type[nn.Module] = OddUnit, units: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VALUES, WIDTH)
        self.blocks = nn.ModuleList(unit() for _ in range(units))
        self.head: nn.Linear | None = nn.Linear(WIDTH, VALUES, bias=False)

    def begin(self, hidden: Tensor) -> Tensor:
        """Return the embeddings, where they are."""
        embedded: Tensor = hidden if self.tokens is None else self.tokens(hidden)
        return embedded

    def end(self, hidden: Tensor) -> Tensor:
        """Return the logits, where the head is."""
        logits: Tensor = hidden if self.head is None else self.head(hidden)
        return logits

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Run what this rank has of the model."""
        hidden = self.begin(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return self.end(hidden)


class TiedEnds(OddModel):
    """The embedding and the head are one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VALUES, bias=False)
        self.head.weight = self.tokens.weight


class ThreeNames(OddModel):
    """An embedding and two heads are one matrix, as in some encoder-decoders."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VALUES, bias=False)
        self.second: nn.Linear | None = nn.Linear(WIDTH, VALUES, bias=False)
        self.head.weight = self.second.weight = self.tokens.weight

    def end(self, hidden: Tensor) -> Tensor:
        """Return the sum of both heads."""
        if self.head is None or self.second is None:
            return hidden
        logits: Tensor = self.head(hidden) + 0.5 * self.second(hidden * hidden)
        return logits


class SharedLayer(OddModel):
    """Two units have one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[3].up = self.blocks[0].up


class CountingUnit(MeasuringUnit):
    """Multiplies by the number of its calls, and has a table that never changes."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        return super().forward(hidden) * (1 + self.calls / 10) * self.table


class Unused(OddModel):
    """Has a parameter that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)


def frozen() -> nn.Module:
    """Return a model that learns nothing."""
    return OddModel().requires_grad_(requires_grad=False)


class Numbered(OddModel):
    """Units are scaled by their number."""

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Run what this rank has of the model."""
        hidden = self.begin(hidden)
        for number, block in enumerate(self.blocks):
            hidden = block(hidden) / (number + 1)
        return self.end(hidden)


class LongSkip(OddModel):
    """Each unit also gets what the first one got."""

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Run what this rank has of the model."""
        hidden = first = self.begin(hidden)
        for block in self.blocks:
            hidden = block(hidden) + 0.5 * first
        return self.end(hidden)


class TwiceThrough(OddModel):
    """Runs over its units twice."""

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Run what this rank has of the model."""
        hidden = self.begin(hidden)
        for block in (*self.blocks, *self.blocks):
            hidden = block(hidden)
        return self.end(hidden)


class Normalized(OddModel):
    """Scales and normalizes outside of its modules."""

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Run what this rank has of the model."""
        hidden = self.begin(hidden) * WIDTH**0.5
        for block in self.blocks:
            hidden = block(hidden)
        return self.end(F.normalize(hidden, dim=-1))


class DroppingUnit(MeasuringUnit):
    """Has dropout, which follows from the mode, and asks what it is."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        return F.dropout(super().forward(hidden), 0.5, self.training)


class Asking(OddModel):
    """Asks its units what they are; returns several tensors."""

    def __init__(self) -> None:
        super().__init__(DroppingUnit, 2)
        for number, block in enumerate(self.blocks):
            vars(block)["number"] = number

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Run what this rank has of the model."""
        hidden = self.begin(hidden)
        for block in self.blocks:
            hidden = block(hidden) if isinstance(block, DroppingUnit) else hidden
            hidden = hidden / (1 + int(vars(block)["number"]))
        return self.end(hidden)


class Tempered(OddModel):
    """Divides by a temperature that the training loop sets, and drops while it is in training."""

    temperature = 1.0

    def end(self, hidden: Tensor) -> Tensor:
        """Return the logits, where the head is."""
        dropped = F.dropout(hidden, 0.9, self.training)
        logits = super().end(dropped)
        return hidden if self.head is None else logits / self.temperature


class Pooling(OddModel):
    """Takes the mean over positions before its head."""

    def end(self, hidden: Tensor) -> Tensor:
        """Return logits [rows, values]."""
        return super().end(hidden.mean(1))


def plan(**changes: Any) -> Plan:
    """Return the plan of these models."""
    whole: dict[str, Any] = {
        "units": "blocks.*",
        "first": "tokens",
        "last": "head",
        "columns": ("blocks.*.q", "blocks.*.k", "blocks.*.v", "blocks.*.up", "head"),
        "rows": ("blocks.*.o", "blocks.*.down", "tokens"),
        "sequence": "blocks.*.norm",
        "heads": {"blocks.*": (HEADS, HEADS)},
    }
    return Plan(**{**whole, **changes})


SIMPLE = Plan(units="blocks.*", first="tokens", last="head")
SHARED = tuple((f"blocks.0.up.{one}", f"blocks.3.up.{one}") for one in ("weight", "bias"))
MODELS: dict[str, tuple[Callable[[], nn.Module], Plan]] = {
    "plain": (OddModel, plan()),
    "measuring": (lambda: OddModel(MeasuringUnit, 2), SIMPLE),
    "three names": (
        ThreeNames,
        plan(
            last=("head", "second"),
            columns=(*plan().columns, "second"),
            tied=(("tokens.weight", "head.weight"), ("tokens.weight", "second.weight")),
        ),
    ),
    "tempered": (Tempered, plan()),
    "pooling": (Pooling, plan()),
    "counting": (lambda: OddModel(CountingUnit, 2), SIMPLE),
    "unused": (Unused, plan()),
    "frozen": (frozen, plan()),
    "numbered": (Numbered, plan()),
    "long skip": (LongSkip, plan()),
    "twice through": (TwiceThrough, plan()),
    "normalized": (Normalized, plan()),
    "asking": (Asking, SIMPLE),
    "shared layer": (SharedLayer, plan(tied=SHARED)),
}
"""How a model is built, and its plan."""


def batch(step: int, rows: int = 8) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [rows, length] of a step."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randint(VALUES, (rows, LENGTH), generator=generator)
    return inputs, inputs.roll(1, 1)


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of all positions."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def shifted_pair(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Return the sum for each next position, and their number."""
    losses = F.cross_entropy(outputs[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), reduction="none")
    return losses.sum(), losses.numel()


def pair_of_parts(outputs: Tensor, targets: Any) -> tuple[Tensor, int]:
    """Return a weighted sum, of targets and weights [rows, length]."""
    wanted, weights = targets
    losses = F.cross_entropy(outputs.flatten(0, 1), wanted.flatten(), reduction="none")
    return (losses * weights.flatten()).sum(), weights.sum()


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "mean": mean_loss,
    "shift": lambda o, t: F.cross_entropy(o[:, :-1].flatten(0, 1), t[:, 1:].flatten()),
    "last position": lambda o, t: F.cross_entropy(o[:, -1], t[:, -1]),
    "shifted pair": shifted_pair,
    "pair of parts": pair_of_parts,
    "sum": lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten(), reduction="sum"),
    "of nothing": lambda o, _: o.square().mean(),
    "of the first": lambda o, t: F.cross_entropy(o, t["y"][:, 0]),
}
"""Losses as people write them."""
