"""A plain transformer learns to copy: the same code on one rank and in every layout."""

import torch
from torch import nn

from hpckit import Plan

WIDTH, HEADS, LENGTH, VALUES = 32, 4, 16, 8


class Block(nn.Module):
    """Attention and a feed-forward pair: [rows, length, width] to the same."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        """Return the hidden states after this block."""
        heads = [
            part(self.norm1(x)).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        taken = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(taken.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Tokens [rows, length] to logits [rows, length, values]."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VALUES, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, VALUES)

    def forward(self, x, positions=None):
        """Run what this rank has of the model."""
        if self.tokens is not None:  # only the first pipeline stage has it
            if positions is None:
                positions = torch.arange(x.shape[1], device=x.device)
            x = self.tokens(x) + self.places(positions)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)  # only the last one has it


PLAN = Plan(
    units="blocks.*",
    first=("tokens", "places"),
    last="head",
    columns=("blocks.*.query", "blocks.*.key", "blocks.*.value", "blocks.*.up", "head"),
    rows=("blocks.*.out", "blocks.*.down", "tokens"),
    sequence=("blocks.*.norm1", "blocks.*.norm2"),
    heads={"blocks.*": (HEADS, HEADS)},
)


def train(config, run):
    """Train 30 steps; log the loss."""
    model = run.parallelize(Model, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    run.state(model=model, optimizer=optimizer)
    share = run.share(16)  # this data rank's rows of a batch of 16
    for step in run.steps(30):
        generator = torch.Generator().manual_seed(step)  # the same batch on every rank
        text = torch.randint(VALUES, (16, LENGTH), generator=generator)[share.rows].to(run.device)
        optimizer.zero_grad()
        loss = run.train_step(model, text, text.roll(1, dims=1), share=share)
        run.clip_grad_norm_(model, 1.0)
        optimizer.step()
        run.log(step=step, loss=loss)
