"""Charlm: a small decoder-only transformer learns the standard library's source text, in bytes.

A language model on real text that every Python ships with; independent of how it is launched. It
reports the bits per byte on held-out text.

Every batch depends only on the seed and the step, and is split over the ranks: the number of ranks
changes the speed, not what is learnt (except for the rounding of sums).
"""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpckit import Run
from hpckit.errors import ConfigError
from hpckit.experiments.across_ranks import share_of, total

BYTE_VALUES = 256
HELD_OUT_EVERY = 10
"""Every tenth of the sorted files is held out, so that both parts have all kinds of modules."""


def train(config: Any, run: Run) -> None:
    """Train on this rank's share of every batch; log the loss, and held-out bits per byte.

    Reads `steps`, `batch_size` (sequences, of all ranks together), `context` (bytes), `lr`,
    `warmup_steps`, `weight_decay`, `layers`, `heads`, `width`, `training_kb`, `heldout_kb`,
    `log_every` and `evaluate_every` (steps) from the configuration. Raises ConfigError if the batch
    cannot be split evenly over the ranks, or the width over the heads.
    """
    torch.use_deterministic_algorithms(mode=True)
    share = share_of(config.batch_size, run.world_size)
    mine = slice(run.rank * share, (run.rank + 1) * share)
    text, heldout = read_corpus(
        training_bytes=1024 * config.training_kb, heldout_bytes=1024 * config.heldout_kb
    )

    network = Transformer(
        width=config.width, layers=config.layers, heads=config.heads, context=config.context
    ).to(run.device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warm_up_and_decay(step, config.warmup_steps, config.steps)
    )
    run.state(model=model, optimizer=optimizer, schedule=schedule)

    for step in run.steps(config.steps):
        starts = batch_starts(len(text) - config.context, config.batch_size, config.seed, step)
        loss = model(cut(text, starts[mine], config.context).to(run.device)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        last = step == config.steps - 1
        if step % config.log_every == 0 or last:
            (loss_sum,) = total(loss, device=run.device)
            run.log(step=step, loss=loss_sum / run.world_size)
        if (step + 1) % config.evaluate_every == 0 or last:
            run.log(step=step, bits_per_byte=bits_per_byte(network, heldout, config.context, run))


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


def batch_starts(length: int, batch_size: int, seed: int, step: int) -> Tensor:
    """Return the start of each sequence in a batch, int [batch_size], the same on every rank."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return torch.randint(length, (batch_size,), generator=generator)


def cut(text: Tensor, starts: Tensor, context: int) -> Tensor:
    """Return int [len(starts), context + 1]: each sequence with the byte that follows it."""
    return text[starts[:, None] + torch.arange(context + 1)].long()


def warm_up_and_decay(step: int, warmup_steps: int, steps: int) -> float:
    """Return the factor on the learning rate: linear warm-up, then half a cosine down."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * done))


@torch.no_grad()
def bits_per_byte(network: Transformer, heldout: Tensor, context: int, run: Run) -> float:
    """Return the mean bits per held-out byte, given those before it in its sequence.

    Every rank reads its own sequences; each byte except the first is predicted exactly once.
    """
    starts = torch.arange(0, len(heldout) - context, context)[run.rank :: run.world_size]
    nats, read = 0.0, 0
    for part in torch.split(starts, 16):
        losses = network(cut(heldout, part, context).to(run.device))
        nats += losses.double().sum().item()
        read += losses.numel()
    nats_sum, read_sum = total(nats, read, device=run.device)
    return nats_sum / read_sum / math.log(2)


class Transformer(nn.Module):
    """A decoder over bytes: pre-norm blocks, learnt positions, tied embeddings.

    Takes int [n, length + 1], length at most `context`; returns the loss, in nats, of every byte
    except the first: float [n, length].
    """

    def __init__(self, *, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(
                f"width={width} cannot be split into {heads} heads of one size",
                hint=f"take a multiple of {heads} for width, or other heads.",
            )
        self.bytes = nn.Embedding(BYTE_VALUES, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.bytes, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, sequences: Tensor) -> Tensor:
        """Return the loss of every byte except the first."""
        seen, wanted = sequences[:, :-1], sequences[:, 1:]
        places = torch.arange(seen.shape[1], device=seen.device)
        hidden = self.bytes(seen) + self.positions(places)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = F.linear(self.norm(hidden), self.bytes.weight)
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view_as(
            wanted
        )


class Block(nn.Module):
    """Causal attention, then a feed-forward layer for every byte; [n, length, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this block."""
        seen: Tensor = hidden + self.attend(self.attention_norm(hidden))
        moved: Tensor = seen + self.feed_forward(seen)
        return moved

    def attend(self, hidden: Tensor) -> Tensor:
        """Return the attention of each byte to itself and to those before it."""
        joined = self.queries_keys_values(hidden).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = joined.permute(2, 0, 3, 1, 4)
        taken = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        mixed: Tensor = self.attention_out(taken.transpose(1, 2).flatten(2))
        return mixed
