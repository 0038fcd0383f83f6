"""One rank of a world whose blocks compute something else, or not, when they are cut."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from byte_model import HEADS, WIDTH, ByteModel, plan
from byte_world import batch, make_run, run_cases
from torch import Tensor, nn


class OddAttention(nn.Module):
    """Attention in one of the ways that people write it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout = nn.Dropout(0.5 if way == "dropout" else 0.0)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what each position takes from those before it."""
        width = WIDTH // HEADS
        shape = (HEADS, -1) if self.way == "fixed heads" else (-1, width)
        query, key, value = (one(hidden) for one in (self.query, self.key, self.value))
        grouped = self.way == "fused"
        if grouped:  # two heads of keys and of values in one matrix
            key, value = key.chunk(2, -1)
        query, key, value = (one.unflatten(-1, shape).transpose(1, 2) for one in (query, key, value))
        if self.way == "by hand":
            scores = (query @ key.transpose(-1, -2)) / width**0.5
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            taken = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        else:
            taken = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        mixed: Tensor = self.dropout(self.out(taken.transpose(1, 2).flatten(2)))
        return mixed


class Counting(nn.Module):
    """Multiplies by how often it was called; changes its input in place."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the input times the number of calls."""
        self.calls += 1
        return hidden * (1 + self.calls)


class OddBlock(nn.Module):
    """A block of the byte model with other attention."""

    def __init__(self, block: nn.Module, way: str) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm, self.up, self.down = (
            block.get_submodule(name) for name in ("attention_norm", "feed_norm", "up", "down")
        )
        self.attention = OddAttention(way)
        self.way = way
        self.counting = Counting() if way == "counting" else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this block."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        if self.way == "shift":
            hidden = hidden + F.pad(hidden, (0, 0, 1, 0))[:, :-1]
        moved: Tensor = hidden + self.down(F.gelu(self.counting(self.up(self.feed_norm(hidden)))))
        return moved


class OddModel(ByteModel):
    """A model that does something with positions before its blocks."""

    way = ""

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return logits [rows, length, values] of tokens [rows, length]."""
        if self.way == "counted places":
            positions = torch.arange(hidden.shape[1]).expand_as(hidden)
        logits = super().forward(hidden, positions)
        if self.way == "drawn":
            return logits + torch.randn_like(logits)
        if self.way == "shifted logits":
            return logits + F.pad(logits, (0, 0, 1, 0))[:, :-1]
        return logits


def build(way: str) -> nn.Module:
    """Return a model of odd blocks."""
    model = OddModel(blocks=2)
    model.way = way
    model.blocks = nn.ModuleList(OddBlock(block, way) for block in model.blocks)
    return model


def trained(case: dict[str, Any]) -> dict[str, Any]:
    """Take two steps; return what is left of the check."""
    run = make_run(case)
    model = run.parallelize(lambda: build(case["way"]), plan())
    inputs, targets = batch(8, 0)
    share = run.share(8)
    drawn = torch.get_rng_state()
    run.train_step(model, inputs[share.rows], targets[share.rows], share=share)
    undrawn = torch.equal(drawn, torch.get_rng_state())
    run.train_step(model, inputs[share.rows], targets[share.rows], share=share)
    calls = [float(one) for name, one in model.named_buffers() if name.endswith("calls")]
    hooks = [
        len(module._forward_hooks) + len(module._forward_pre_hooks)  # noqa: SLF001  # torch has no other way
        for module in model.modules()
        if isinstance(module, OddBlock)
    ]
    return {"calls": calls, "undrawn": undrawn, "hooks": hooks}


if __name__ == "__main__":
    run_cases(trained)
