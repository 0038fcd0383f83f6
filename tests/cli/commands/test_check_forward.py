"""Promises of `hpckit check` about forward: what fails in its layout is named before it waits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tiers import thorough

pytestmark = pytest.mark.training

MODEL = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from hpckit import Plan

class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        sizes = (4, 4) if self.kind == "heads" else (-1, 4)
        parts = [one(x).unflatten(-1, sizes) for one in (self.query, self.key, self.value)]
        if self.kind == "angles":
            parts[0] = parts[0] * torch.linspace(0, 1, 4, dtype=torch.float32, device=x.device)
        query, key, value = (one.transpose(1, 2) for one in parts)
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(-2))
        return x + self.down(self.up(x).relu())

class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.tokens = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(4))
        self.head = nn.Linear(16, 50)

    def forward(self, x, positions=None):
        if self.kind == "values" and float(x.float().sum()) > 0:
            raise ValueError
        if self.tokens is not None or self.kind == "ends":
            x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)

PLAN = Plan(units="blocks.*", first="tokens", last="head",
            columns=("blocks.*.query", "blocks.*.key", "blocks.*.value", "blocks.*.up", "head"),
            rows=("blocks.*.out", "blocks.*.down", "tokens"), heads={"blocks.*": (4, 4)})

def train(config, run):
    model = run.parallelize(lambda: Model(config.kind), PLAN)
    share = run.share(8)
    for step in run.steps(3):
        text = torch.zeros(8, 12, dtype=torch.long)[share.rows]
        run.train_step(model, text, text, share=share)
"""
WORDS = ("experiment=function", "entry_point=train:train", "cluster=local", "code.snapshot=false")
EVERY = "parallel.tensor=2 parallel.pipeline=2 parallel.context=2 parallel.shard=2"


def checked(shell: Any, kind: str, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Return exit code and findings of a check of eight ranks, or of as many as words say."""
    (shell.cwd / "train.py").write_text(MODEL)
    ranks = "resources.tasks_per_node=16" if "parallel=layout" in words else ""
    ranks = ranks or "resources.tasks_per_node=2"
    said = shell("check", "--json", *WORDS, ranks, f"+kind={kind}", *words)
    return said.code, json.loads(said.out)["findings"]


@pytest.mark.parametrize(
    ("kind", "words", "expected"),
    [
        ("heads", ("parallel=tensor",), ("its forward fails in this layout", "line 16")),
        pytest.param(
            *("ends", ("parallel=pipeline",)),
            ("on stage 2 of 2", "'NoneType' object is not callable"),
            marks=thorough,
        ),
        pytest.param(
            *("angles", ("parallel=fsdp", "parallel.params=bf16")),
            ("parallel.params=bf16", "dtype"),
            marks=thorough,
        ),
    ],
)
def test_forward_that_fails_in_its_layout_is_an_error(
    shell: Any, kind: str, words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """With the layout, the stage and the line of the user's code, and what to do."""
    code, findings = checked(shell, kind, *words)
    assert code == 2
    (error,) = (finding for finding in findings if finding["severity"] == "error")
    assert all(word in error["message"] for word in expected), error
    assert error["hint"]


def test_forward_that_is_right_passes_in_all_layouts_at_once(shell: Any) -> None:
    """Tensor, pipeline, context and shards together, two groups of stages, and bfloat16."""
    words = ("parallel=layout", *EVERY.split(), "parallel.schedule=Interleaved1F1B")
    code, findings = checked(shell, "right", *words, "parallel.params=bf16")
    assert (code, findings) == (0, [])


@thorough
def test_forward_that_needs_values_is_said_to_be_unchecked(shell: Any) -> None:
    """It runs on a real device only: a warning, and no error that would not come up."""
    code, findings = checked(shell, "values", "parallel=tensor")
    assert code == 0
    (warning,) = findings
    assert "its forward was not checked" in warning["message"]
    assert "train.py" in warning["message"]
