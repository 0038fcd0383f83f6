"""One rank of a small training: DDP, dropout, batch norm, Adam, a scheduler, three generators.

Has everything in it whose state a resume must bring back.
"""

# ruff: noqa: S311, NPY002  # these are the generators whose states must come back
from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runtime.checkpoint.orders import follow_orders
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings

BATCH = 24


class Tally:
    """A user's own state, of plain values; refuses the state of the step that is its poison."""

    def __init__(self, poison: int | None) -> None:
        self.poison = poison
        self.seen: dict[Any, Any] = {"steps": (), 7: float("inf")}

    def state_dict(self) -> dict[Any, Any]:
        """Return the values."""
        return self.seen

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        """Take the values, unless they are the poison."""
        if self.poison is not None and len(state["steps"]) == self.poison:
            raise RuntimeError("this state kills")
        self.seen = state


class Training:
    """Model, optimizer, scheduler and tally; `step` trains one step on all ranks."""

    def __init__(self, rank: int, world_size: int, orders: dict[str, Any]) -> None:
        torch.manual_seed(1)
        usual = orders.get("all_width", 32)
        width = usual if rank == 0 else orders.get("width", usual)
        poisoned = rank == orders.get("poison_rank")
        layers = [nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 1)]
        model: nn.Module = nn.Sequential(*layers)
        self.model: nn.Module = (
            DistributedDataParallel(model)
            if orders.get("ddp", world_size > 1 and not orders.get("sharded"))
            else model
        )
        if orders.get("sharded"):
            mesh = init_device_mesh("cpu", (world_size,))
            model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1))
            fully_shard(model, mesh=mesh)  # in place
            self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.05, total_steps=100)
        self.tally = Tally(orders.get("poison") if poisoned else None)
        self.share = slice(rank, None, world_size)
        for generator in (random.seed, np.random.seed, torch.manual_seed):
            generator(orders.get("seed", 3) + rank)

    @property
    def objects(self) -> dict[str, Any]:
        """Return what is registered."""
        names = ("model", "optimizer", "scheduler", "tally")
        return {name: getattr(self, name) for name in names}

    def step(self, samples: int) -> float:
        """Train one step on the batch at this position; return the loss of this rank."""
        data = torch.Generator().manual_seed(samples)
        x = torch.randn(BATCH, 8, generator=data)[self.share]
        x = x + 0.01 * random.random() + 0.01 * float(np.random.rand())
        self.optimizer.zero_grad()
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.tally.seen["steps"] = (*self.tally.seen["steps"], samples)
        return float(loss.item())

    def digest(self) -> str:
        """Return a digest of the bits of parameters, moments and tally."""
        digest = hashlib.sha256()
        moments = [one["exp_avg"] for one in self.optimizer.state.values()]
        for tensor in (*self.model.parameters(), *moments):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            digest.update(whole.detach().numpy().tobytes())
        digest.update(repr(self.tally.seen).encode())
        return digest.hexdigest()


def train(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Restore, train, save; return what was seen."""
    settings = CheckpointSettings(epoch=orders["epoch"], keep=orders.get("keep", 3))
    checkpointer = Checkpointer(Path(orders["folder"]), settings)
    training = Training(int(os.environ["RANK"]), world_size, orders)
    restored = checkpointer.restore(training.objects)
    samples = restored.samples if restored else 0
    losses, outcomes = {}, []
    start = training.digest()
    for step in range(restored.step if restored else 0, orders["until"]):
        losses[step] = training.step(samples)
        samples += BATCH
        if step + 1 in orders.get("save_at", []):
            checkpointer.save(training.objects, step + 1, samples, wait=orders["wait"])
            outcomes.append(step + 1)
        if orders.get("prove"):
            checkpointer.record_progress()
    checkpointer.close()
    return {
        "losses": losses,
        "start": start,
        "digest": training.digest(),
        "restored": None
        if restored is None
        else {
            "step": restored.step,
            "samples": restored.samples,
            "reseeded": restored.reseeded,
            "rejected": [[one.name, one.reason] for one in restored.rejected],
        },
        "saved": outcomes,
    }


if __name__ == "__main__":
    follow_orders(train)
