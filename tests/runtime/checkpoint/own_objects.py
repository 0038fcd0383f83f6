"""One rank of a world with an object of the user's own that has sharded tensors: an average.

It is saved in one layout, and loaded into another one by an object that is new.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from runtime.checkpoint.layouts import CASES, Setup, placed, whole
from runtime.checkpoint.orders import follow_orders
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings

ODD = 7
"""Rows of a tensor that no parameter is like."""


class Average:
    """A moving average of parameters, by name, made at once or when it is first updated.

    `way`: its state comes back by assignment, by a copy in place, or as a list without names.
    """

    def __init__(self, model: nn.Module, way: str) -> None:
        self.model, self.way = model, way
        self.shadow: dict[str, torch.Tensor] = {}
        if way in {"assigned", "copied"}:
            self.update()

    def update(self) -> None:
        """Take the parameters, or what the way says."""
        named = self.model.named_parameters()
        self.shadow = {name.removeprefix("module."): one.detach().clone() for name, one in named}
        cut = next((one for one in self.shadow.values() if isinstance(one, DTensor)), None)
        if cut is not None and self.way in {"other", "partial"}:
            values = torch.arange(float(ODD))
            mesh = cut.device_mesh
            self.shadow = {"odd": distribute_tensor(values, mesh, [Shard(0)])}
            if self.way == "partial":
                self.shadow = {"odd": DTensor.from_local(values, mesh, [Partial()])}

    def state_dict(self) -> dict[str, Any]:
        """Return the average."""
        as_list = self.way == "list"
        return {"shadow": list(self.shadow.values()) if as_list else self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the average."""
        found = state["shadow"]
        if isinstance(found, list):
            found = {str(number): one for number, one in enumerate(found)}
        if self.way == "copied":
            for name, one in found.items():
                self.shadow[name].copy_(one)
        else:
            self.shadow = found


def save_and_load(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Save in each layout, load into each, in each way; tell what is not as it was."""
    wrong: dict[str, Any] = {}
    for way in orders["ways"]:
        for source in orders["from"]:
            folder = Path(orders["folder"]) / way / source
            if orders.get("save", True):
                save(folder, Setup(CASES[world_size][source], 1), way)
            for to in orders["to"]:
                setup = Setup(CASES[world_size][to], 1)
                wrong[f"{way}: {source} to {to}"] = differences(folder, setup, way)
    return {"wrong": wrong}


def save(folder: Path, setup: Setup, way: str) -> None:
    """Save a model and its average."""
    average = Average(setup.model, way)
    average.update()
    checkpointer = Checkpointer(folder, CheckpointSettings(layout=setup.layout))
    checkpointer.save({"model": setup.model, "average": average}, 1, 1, wait=True)
    checkpointer.close()


def differences(folder: Path, setup: Setup, way: str) -> list[str]:
    """Load into a new average; return the names of what is not as in one of the same parameters."""
    loaded, expected = Average(setup.model, way), Average(setup.model, way)
    checkpointer = Checkpointer(folder, CheckpointSettings(layout=setup.layout))
    checkpointer.restore({"model": setup.model, "average": loaded})
    checkpointer.close()
    expected.update()
    pairs = zip(expected.shadow.items(), loaded.shadow.values(), strict=True)
    return [
        name
        for (name, one), other in pairs
        if placed(one) != placed(other) or not torch.equal(whole(one), whole(other))
    ]


if __name__ == "__main__":
    follow_orders(save_and_load)
