"""A small transformer as a user would write it, and its plan."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor, nn

from hpckit.model.parallel.plan import Plan

WIDTH, HEADS, LENGTH, VALUES = 32, 4, 16, 64


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self, *, normed: bool = False) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(WIDTH // HEADS) if normed else nn.Identity()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what each position takes from those before it."""
        query, key, value = (
            part(hidden).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        query = self.query_norm(query)
        taken = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(taken.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention and a feed-forward pair."""

    def __init__(self, *, normed: bool = False) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(normed=normed)
        self.feed_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return the hidden states after this block."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        moved: Tensor = hidden + self.down(F.gelu(self.up(self.feed_norm(hidden))))
        return moved


class ByteModel(nn.Module):
    """Embeddings, blocks, a norm and a head that is tied to the embedding."""

    def __init__(self, blocks: int = 8, *, tied: bool = True, normed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VALUES, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(normed=normed) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head: nn.Linear | None = nn.Linear(WIDTH, VALUES, bias=False)
        for one in (self.embed, self.place):
            nn.init.normal_(one.weight, std=0.02)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return logits [rows, length, values] of tokens [rows, length], or what a part makes."""
        if self.embed is not None:
            if positions is None:
                positions = torch.arange(hidden.shape[1], device=hidden.device).expand_as(hidden)
            hidden = self.embed(hidden) + self.place(positions)
        for block in self.blocks:
            hidden = block(hidden)
        if self.head is None:
            return hidden
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def plan(**changes: Any) -> Plan:
    """Return the model's plan."""
    whole: dict[str, Any] = {
        "units": "blocks.*",
        "first": ("embed", "place"),
        "last": ("norm", "head"),
        "tied": (("embed.weight", "head.weight"),),
        "columns": (
            *("blocks.*.attention.query", "blocks.*.attention.key", "blocks.*.attention.value"),
            *("blocks.*.up", "head"),
        ),
        "rows": ("blocks.*.attention.out", "blocks.*.down", "embed"),
        "sequence": ("blocks.*.attention_norm", "blocks.*.feed_norm", "norm"),
        "heads": {"blocks.*": (HEADS, HEADS)},
    }
    return Plan(**{**whole, **changes})
