"""Charlm: a small decoder-only transformer learns the standard library's source text, in bytes.

A language model on real text that every Python ships with; independent of how it is launched. It
reports the bits per byte on held-out text.

Every batch depends only on the seed and the step, and is shared out over the data ranks. So neither
the number of ranks nor the layout (`parallel=fsdp`, `tensor`, `pipeline`, …) changes what is
learnt, except for the rounding of sums.
"""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor, nn

from hpckit import Plan, Run
from hpckit.errors import ConfigError

BYTE_VALUES = 256
EVALUATED_ROWS = 16
"""Held-out sequences that each data rank reads at a time."""
IGNORED = -100
"""Target of a position that does not count."""
HELD_OUT_EVERY = 10
"""Every tenth of the sorted files is held out, so that both parts have all kinds of modules."""


def train(config: Any, run: Run) -> None:
    """Train on this rank's share of every batch; log the loss, and held-out bits per byte.

    Reads `steps`, `batch_size` (sequences, of all ranks together), `context` (bytes), `lr`,
    `warmup_steps`, `weight_decay`, `layers`, `heads`, `width`, `training_kb`, `heldout_kb`,
    `log_every` and `evaluate_every` (steps) from the configuration. Raises ConfigError if the width
    cannot be split over the heads, or the layout does not fit the model.
    """
    torch.use_deterministic_algorithms(mode=True)
    text, heldout = read_corpus(
        training_bytes=1024 * config.training_kb, heldout_bytes=1024 * config.heldout_kb
    )

    def build() -> nn.Module:
        return Transformer(
            width=config.width, layers=config.layers, heads=config.heads, context=config.context
        )

    model = run.parallelize(build, build_layout_plan(config.heads))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, config.warmup_steps, config.steps)
    )
    run.state(model=model, optimizer=optimizer, schedule=schedule)

    share = run.share(config.batch_size)
    for step in run.steps(config.steps, samples_per_step=config.batch_size):
        starts = draw_batch_starts(len(text) - config.context, config.batch_size, config.seed, step)
        sequences = cut_sequences(text, starts[share.rows], config.context).to(run.device)
        optimizer.zero_grad()
        loss = run.train_step(model, sequences[:, :-1], sequences[:, 1:], share=share)
        run.clip_grad_norm_(model, 1.0)
        optimizer.step()
        schedule.step()
        last = step == config.steps - 1
        if step % config.log_every == 0 or last:
            run.log(step=step, loss=loss)
        if (step + 1) % config.evaluate_every == 0 or last:
            run.log(step=step, bits_per_byte=measure_bits_per_byte(model, heldout, config.context, run))


def build_layout_plan(heads: int) -> Plan:
    """Return how the transformer may be laid out over ranks."""
    return Plan(
        units="blocks.*",
        first="embedding",
        last=("norm", "head"),
        tied=(("embedding.bytes.weight", "head.weight"),),
        columns=(*("blocks.*.query", "blocks.*.key", "blocks.*.value"), *("blocks.*.feed_forward.1", "head")),
        rows=("blocks.*.attention_out", "blocks.*.feed_forward.3", "embedding.bytes"),
        sequence=("blocks.*.attention_norm", "blocks.*.feed_forward.0", "norm"),
        heads={"blocks.*": (heads, heads)},
    )


def read_corpus(*, training_bytes: int, heldout_bytes: int) -> tuple[Tensor, Tensor]:
    """Return training and held-out text, uint8 [n] each, from different files.

    The files are the standard library's own top-level modules, sorted by name, as many as fit.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"), key=lambda file: file.name)
    heldout = files[::HELD_OUT_EVERY]
    training = [file for file in files if file not in heldout]
    return read_bytes(training, training_bytes), read_bytes(heldout, heldout_bytes)


def read_bytes(files: list[Path], limit: int) -> Tensor:
    """Return the bytes of the files, concatenated, uint8 [n], n at most `limit`."""
    text = bytearray()
    for file in files:
        if len(text) >= limit:
            break
        text += file.read_bytes()
    return torch.frombuffer(text, dtype=torch.uint8)[:limit]


def draw_batch_starts(length: int, batch_size: int, seed: int, step: int) -> Tensor:
    """Return the start of each sequence in a batch, int [batch_size], the same on every rank."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return torch.randint(length, (batch_size,), generator=generator)


def cut_sequences(text: Tensor, starts: Tensor, context: int) -> Tensor:
    """Return int [len(starts), context + 1]: each sequence with the byte that follows it."""
    return text[starts[:, None] + torch.arange(context + 1)].long()


def learning_rate_factor(step: int, warmup_steps: int, steps: int) -> float:
    """Return the factor on the learning rate: linear warm-up, then half a cosine down."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * done))


def measure_bits_per_byte(model: nn.Module, heldout: Tensor, context: int, run: Run) -> float:
    """Return the mean bits per held-out byte, given those before it in its sequence.

    Each data rank reads its own sequences, and each byte except the first is predicted exactly
    once. All ranks read equally many, so that some read rows that do not count.
    """
    starts = torch.arange(0, len(heldout) - context, context)
    each = EVALUATED_ROWS * run.data_size
    nats = 0.0
    for at in range(0, len(starts), each):
        rows = torch.arange(at, at + each)[run.share(each).rows]
        sequences = cut_sequences(heldout, starts[rows % len(starts)], context)
        targets = sequences[:, 1:].masked_fill((rows >= len(starts))[:, None], IGNORED)
        inputs, targets = sequences[:, :-1].to(run.device), targets.to(run.device)
        nats += targets.numel() * float(run.evaluate(model, inputs, targets, loss=masked_mean_loss))
    return run.mean(nats) * run.data_size / (len(starts) * context) / math.log(2)


def masked_mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over all positions, of which ignored ones have 0."""
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.mean()


class Transformer(nn.Module):
    """A decoder over bytes: pre-norm blocks, learnt positions, tied embeddings.

    Takes bytes, int [n, length], and their positions, int [n, length], 0, 1, … if left out; returns logits
    for the byte after each, float [n, length, 256]. A pipeline stage has only some of its modules: it takes
    hidden states, float [n, length, width], unless it is the first, and returns them unless it is the last.
    """

    def __init__(self, *, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(
                f"width={width} cannot be split into {heads} heads of equal size",
                hint=f"choose a multiple of {heads} for width, or another number of heads.",
            )
        self.embedding: Embedding | None = Embedding(width, context)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head: nn.Linear | None = nn.Linear(width, BYTE_VALUES, bias=False)
        self.head.weight = self.embedding.bytes.weight

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return logits, or hidden states for the next stage."""
        if self.embedding is not None:
            hidden = self.embedding(hidden, positions)
        for block in self.blocks:
            hidden = block(hidden)
        if self.head is None:
            return hidden
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class Embedding(nn.Module):
    """Bytes and positions, int [n, length], as hidden states, float [n, length, width]."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTE_VALUES, width)
        self.positions = nn.Embedding(context, width)
        for embedding in (self.bytes, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, seen: Tensor, positions: Tensor | None) -> Tensor:
        """Return the hidden states of bytes at these positions."""
        if positions is None:
            positions = torch.arange(seen.shape[1], device=seen.device)
        hidden: Tensor = self.bytes(seen) + self.positions(positions)
        return hidden


class Block(nn.Module):
    """Causal attention, then a feed-forward layer for every byte; [n, length, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this block."""
        seen: Tensor = hidden + self.attend(self.attention_norm(hidden))
        moved: Tensor = seen + self.feed_forward(seen)
        return moved

    def attend(self, hidden: Tensor) -> Tensor:
        """Return the attention of each byte to itself and to those before it."""
        queries, keys, values = (
            # As many heads as there are here: with parallel.tensor each rank has some of them.
            part(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        taken = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        mixed: Tensor = self.attention_out(taken.transpose(1, 2).flatten(2))
        return mixed
