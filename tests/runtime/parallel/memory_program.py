"""One rank of a world that trains a transformer in many layouts, and counts its live bytes."""

from __future__ import annotations

import gc
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from byte_world import rank_of_world, run_cases
from live_bytes import LiveBytes
from torch import Tensor, nn

from hpckit.features.capacity.model_transformer import TransformerShape
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import Parallel, Precision, Recompute
from hpckit.runtime.rank.parallel_run import ParallelRun

STEPS = 3
"""The first step makes checks; after it DDP makes new buckets. The third one is as all others."""


class Layer(nn.Module):
    """Attention and a feed-forward part: Llama's with `swiglu`, otherwise GPT's."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.head_width = shape.query_width // shape.heads
        self.norm1, self.norm2 = norm(shape), norm(shape)
        self.query, self.key, self.value = (
            nn.Linear(shape.hidden, width, bias=shape.biases)
            for width in (shape.query_width, shape.kv_width, shape.kv_width)
        )
        self.out = nn.Linear(shape.query_width, shape.hidden, bias=shape.biases)
        self.up = nn.Linear(shape.hidden, shape.ffn_width, bias=shape.biases)
        self.down = nn.Linear(shape.ffn_width, shape.hidden, bias=shape.biases)
        if shape.swiglu:
            self.gate = nn.Linear(shape.hidden, shape.ffn_width, bias=shape.biases)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this layer: [rows, length, width]."""
        normed = self.norm1(hidden)
        query, key, value = (
            part(normed).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        taken = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        hidden = hidden + self.out(taken.transpose(1, 2).flatten(2))
        normed = self.norm2(hidden)
        if hasattr(self, "gate"):
            grown = F.silu(self.gate(normed)) * self.up(normed)
        else:
            grown = F.gelu(self.up(normed))
        moved: Tensor = hidden + self.down(grown)
        return moved


def norm(shape: TransformerShape) -> nn.Module:
    """Return a norm: with a shift where the shape has biases."""
    return nn.LayerNorm(shape.hidden) if shape.biases else nn.RMSNorm(shape.hidden)


class Transformer(nn.Module):
    """The model of a shape, without dropout and experts."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.place = nn.Embedding(shape.positions, shape.hidden) if shape.positions else None
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = norm(shape)
        self.head: nn.Linear | None = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the scores of all words, or what a pipeline's stage passes on."""
        if self.tokens is not None:
            words = hidden
            hidden = self.tokens(words)
            if self.place is not None:
                if positions is None:
                    positions = torch.arange(words.shape[1]).expand_as(words)
                hidden = hidden + self.place(positions)
        for layer in self.layers:
            hidden = layer(hidden)
        if self.head is None:
            return hidden
        scores: Tensor = self.head(self.norm(hidden))
        return scores


def plan_of(shape: TransformerShape) -> Plan:
    """Return the plan of a shape's model."""
    columns = ("query", "key", "value", "up", *(["gate"] if shape.swiglu else []))
    return Plan(
        units="layers.*",
        first=("tokens", *(["place"] if shape.positions else [])),
        last=("norm", "head"),
        tied=(("tokens.weight", "head.weight"),) if shape.tied else (),
        columns=(*(f"layers.*.{column}" for column in columns), "head"),
        rows=("layers.*.out", "layers.*.down", "tokens"),
        sequence=("layers.*.norm1", "layers.*.norm2", "norm"),
        heads={"layers.*": (shape.heads, shape.kv_heads or shape.heads)},
    )


def settings_of(case: dict[str, Any]) -> Parallel:
    """Return the settings of a case, whose words are plain ones."""
    words = dict(case["parallel"])
    kinds: dict[str, Any] = {"params": Precision, "recompute": Recompute}
    return Parallel(**{key: kinds.get(key, type(one))(one) for key, one in words.items()})


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Train some steps; return what the last one needed, in bytes.

    `states` are there between steps, and `kept` besides as the backward pass begins; `step` and
    `update` are the most within `run.train_step` and the optimizer's step. `tensors` names what was
    there at the most of the step, if the case asks for `names`.
    """
    shape = TransformerShape(**case["shape"])
    gc.collect()
    live = LiveBytes(names=case.get("names", False))
    kept: list[int] = []
    backward = torch.autograd.backward

    def noted(*args: Any, **kwargs: Any) -> None:
        kept.append(live.now)
        backward(*args, **kwargs)

    with live, mock.patch.object(torch.autograd, "backward", noted):
        run = ParallelRun(
            info=rank_of_world(),
            device=torch.device("cpu"),
            seed=7,
            layout=Layout(**case["layout"]),
            parallel=settings_of(case),
        )
        model = run.parallelize(lambda: Transformer(shape), plan_of(shape))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        text = torch.zeros(case["rows"], case["sequence"], dtype=torch.int64)
        for _ in range(STEPS):
            optimizer.zero_grad()
            kept.clear()
            states = live.mark()
            run.train_step(model, text, text)
            step, tensors = live.peak, live.largest()
            live.mark()
            optimizer.step()
            update = live.peak
        found = {
            "states": states,
            "kept": kept[0] - states if kept else 0,
            "step": step,
            "update": update,
            "tensors": tensors,
        }
        del model, optimizer, run
    return found


if __name__ == "__main__":
    run_cases(measured)
