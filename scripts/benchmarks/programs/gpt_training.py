"""Trainings of one GPU whose memory and steps `scripts/bench gpu` compares with the plan."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor, nn

from hpckit import Plan, Run
from hpckit.experiments import charlm

_WARM_UP = 3


PLAN = Plan(units="blocks.*", tied=(("tokens.weight", "head.weight"),))


class Attention(nn.Module):
    """Causal attention without dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [rows, tokens, width] for [rows, tokens, width]."""
        parts = self.inputs(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [rows, tokens, width] for [rows, tokens, width]."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(x)  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """A GPT whose head is tied to its table of tokens."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores [rows, tokens, vocab] for tokens [rows, tokens]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def train(config: Any, run: Run) -> None:
    """Train a GPT on random tokens; log what the GPU has in use, and the median step."""
    model = run.parallelize(lambda: Gpt(config), PLAN)
    parameters = model.parameters()
    if config.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, fused=_on_gpu(run))
    else:
        optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    shape = (config.rows, config.positions + 1)
    batch = torch.randint(config.vocab, shape, device=run.device)
    times = []
    for _ in run.steps(config.steps, samples_per_step=config.rows):
        began = time.perf_counter()
        optimizer.zero_grad()
        run.train_step(model, batch[:, :-1], batch[:, 1:])
        optimizer.step()
        if _on_gpu(run):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    run.log(step_s=statistics.median(times[_WARM_UP:] or times))
    _log_memory(run)


def train_charlm(config: Any, run: Run) -> None:
    """Train charlm as it is shipped; log what the GPU has in use."""
    charlm.train(config, run)
    _log_memory(run)


def _on_gpu(run: Run) -> bool:
    return run.device.type == "cuda"


def _log_memory(run: Run) -> None:
    """Log bytes: in use on the GPU, with the context of CUDA; the most that torch had; its pool."""
    if _on_gpu(run):
        free, whole = torch.cuda.mem_get_info()
        run.log(
            used_bytes=whole - free,
            peak_bytes=torch.cuda.max_memory_allocated(),
            reserved_bytes=torch.cuda.memory_reserved(),
        )
