"""One rank of a world that trains with `parallel.reduce`, and tells the hash of what it learnt."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch
import torch.distributed as dist
from byte_model import ByteModel, plan
from byte_world import batch, make_run, run_cases
from torch import Tensor, nn

from hpckit.model.parallel.plan import Plan
from hpckit.runtime.rank.parallel_run import ParallelRun

ROWS, STEPS = 16, 5
TIED = Plan(tied=(("bytes.embed.weight", "bytes.head.weight"),))


class Partly(nn.Module):
    """A model with a part that only some rows use, a part that none uses, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = ByteModel(blocks=4)
        self.rare = nn.Parameter(torch.ones(64))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        """Use the rare part for rows that begin with a small number."""
        out: Tensor = self.bytes(x)
        return out * self.rare if int(x[0, 0]) < 16 else out


class Normed(nn.Module):
    """A model with statistics of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(64, 8), nn.BatchNorm1d(8)


def made(case: dict[str, Any]) -> ParallelRun:
    """Return the run of this rank."""
    sizes = {"layout": dist.get_world_size(), "full": case["full"]}
    return make_run(case | {name: {"replicate": size} for name, size in sizes.items()})


def trained(case: dict[str, Any]) -> dict[str, Any]:
    """Train some steps; return hashes, losses, the seconds of a step, and what is unused."""
    run, wrong = made(case), case.get("wrong", "")
    build = {"normed": Normed, "partly": Partly}.get(wrong, ByteModel)
    plans = {ByteModel: plan(), Partly: TIED}
    model = run.parallelize(build, plans.get(build))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses, seconds = [], []
    for step in range(STEPS):
        inputs, targets = batch(case.get("rows", ROWS), step)
        share = run.share(len(inputs))
        rows = slice(0, 8) if wrong == "other rows" else share.rows
        begun = time.monotonic()
        optimizer.zero_grad()
        if wrong == "own backward":
            torch.autograd.backward(model(inputs[rows]).sum())
        given = None if wrong == "other rows" else share
        loss = run.train_step(model, inputs[rows], targets[rows], share=given)
        if case.get("twice"):
            run.train_step(model, inputs[rows], targets[rows], share=share)
        norm = run.clip_grad_norm_(model, 0.5)
        optimizer.step()
        seconds.append(time.monotonic() - begun)
        losses.append([float(loss).hex(), float(norm).hex()])
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return {
        "hash": found.hexdigest(),
        "losses": losses,
        "seconds": sorted(seconds)[len(seconds) // 2],
        "unused": [name for name, one in model.named_parameters() if one.grad is None],
    }


def tried(case: dict[str, Any]) -> dict[str, Any]:
    """Train, or return what torch makes of an error in a hook."""
    try:
        return trained(case)
    except RuntimeError as error:
        return {"error": type(error).__name__, "message": str(error), "hint": ""}


if __name__ == "__main__":
    run_cases(tried)
