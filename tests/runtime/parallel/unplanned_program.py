"""One rank of a world whose blocks have layers that the plan of the model names nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from byte_model import HEADS, LENGTH, WIDTH, ByteModel, plan
from byte_world import batch, make_run, run_cases
from torch import Tensor, nn

HEAD = WIDTH // HEADS


class Adapter(nn.Module):
    """A pair of narrow layers beside a wide one."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what is added to the wide one's result."""
        added: Tensor = self.wide(self.narrow(hidden))
        return added


class UnplannedBlock(nn.Module):
    """A block of the byte model with something more, `way`."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        match way:
            case "gate" | "gate in sequence":
                self.gate = nn.Linear(WIDTH, 1)
            case "adapter" | "adapter in columns" | "adapter of the input":
                self.adapter = Adapter()
            case "norm of heads" | "norm of heads in sequence":
                self.head_norm = nn.LayerNorm(HEAD)
            case "gate of heads":
                self.gate = nn.Linear(WIDTH, 1)
            case "scale":
                self.scale = nn.Parameter(torch.rand(WIDTH))
            case "temperature":
                self.temperature = nn.Parameter(torch.rand(()))
            case "buffer":
                self.register_buffer("scales", torch.rand(WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this block."""
        normed = self.norm1(hidden)
        wide = self.query(normed)
        if self.way in {"adapter", "adapter in columns"}:
            wide = wide + self.adapter(normed)
        query, key, value = (
            one.unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for one in (wide, self.key(normed), self.value(normed))
        )
        if self.way.startswith("norm of heads"):
            query = self.head_norm(query)
        if self.way == "temperature":
            query = query * self.temperature
        if self.way == "gate of heads":
            query = query * torch.sigmoid(self.gate(normed)).unsqueeze(1)
        taken = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(taken.transpose(1, 2).flatten(2))
        added = self.down(F.gelu(self.up(self.norm2(hidden))))
        if self.way in {"gate", "gate in sequence"}:
            added = torch.sigmoid(self.gate(hidden)) * added
        if self.way == "adapter of the input":
            added = added + self.adapter(hidden)
        if self.way == "scale":
            added = added * self.scale
        if self.way == "buffer":
            added = added * self.scales
        if self.way == "mask":
            added = added * (torch.arange(hidden.shape[1]) > 1).unsqueeze(-1)
        moved: Tensor = hidden + added
        return moved


class BesideModel(ByteModel):
    """A model with plain tensors beside its modules, outside of its blocks."""

    way = ""

    def __init__(self) -> None:
        super().__init__(blocks=2)
        self.register_buffer("waves", torch.randn(LENGTH, WIDTH))

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return logits [rows, length, values] of tokens [rows, length]."""
        places = torch.arange(hidden.shape[1]).expand_as(hidden)
        tokens, hidden = hidden, self.embed(hidden) + self.place(places)
        if self.way == "waves":
            hidden = hidden + self.get_buffer("waves")
        if self.way == "padding":
            hidden = hidden * (tokens != 0).unsqueeze(-1)
        if self.way == "shifted":
            hidden[:, 1:] += hidden[:, :-1].clone()
        for block in self.blocks:
            hidden = block(hidden)
        if self.way == "written":
            hidden[:, :3][..., :5] *= 0.5
        hidden = self.norm(hidden)
        if self.way == "pooled":
            hidden = hidden + hidden.mean(1, keepdim=True)
        logits: Tensor = self.head(hidden)  # type: ignore[misc]
        return logits


def build(way: str) -> nn.Module:
    """Return a model of such blocks."""
    beside = way in {"waves", "padding", "pooled", "written", "shifted"}
    model = BesideModel() if beside else ByteModel(blocks=2)
    model.way = way  # type: ignore[assignment]
    model.blocks = nn.ModuleList(UnplannedBlock(way) for _ in range(2))
    return model


def plan_for(way: str) -> Any:
    """Return the plan of the model, which names what is more in the ways that say so."""
    columns = ("query", "key", "value", "up")
    found = replace(
        plan(),
        columns=(*(f"blocks.*.{column}" for column in columns), "head"),
        rows=("blocks.*.out", "blocks.*.down", "embed"),
        sequence=("blocks.*.norm1", "blocks.*.norm2", "norm"),
    )
    match way:
        case "gate in sequence":
            return replace(found, sequence=(*found.sequence, "blocks.*.gate"))
        case "norm of heads in sequence":
            return replace(found, sequence=(*found.sequence, "blocks.*.head_norm"))
        case "adapter in columns":
            return replace(found, columns=(*found.columns, "blocks.*.adapter.wide"))
    return found


def gradients(case: dict[str, Any], layout: dict[str, int]) -> dict[str, Tensor]:
    """Return the gradients of a step in a layout, whole."""
    run = make_run({**case, "layout": layout})
    model = run.parallelize(lambda: build(case["way"]).double(), plan_for(case["way"]))
    inputs, targets = batch(8, 0)
    share = run.share(8)
    run.train_step(model, inputs[share.rows], targets[share.rows], share=share)
    found = {}
    for name, one in model.named_parameters():
        assert one.grad is not None, name
        whole = one.grad.full_tensor() if hasattr(one.grad, "full_tensor") else one.grad
        found[name.removeprefix("module.")] = whole
    return found


def compared(case: dict[str, Any]) -> dict[str, Any]:
    """Return how far gradients are from those of replicas, as a share of the largest one."""
    cut = gradients(case, {"tensor": 2})
    whole = gradients({"way": case["way"]}, {"replicate": 2})
    largest = max(float(one.norm()) for one in whole.values())
    far = {name: float((cut[name] - one).norm()) / largest for name, one in whole.items()}
    worst = max(far, key=lambda name: far[name])
    return {"worst": worst, "far": far[worst]}


if __name__ == "__main__":
    run_cases(compared)
