"""One rank that begins with a file of weights in every layout of its world, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from runtime.checkpoint.layouts import CASES, TIED, Setup, whole
from runtime.checkpoint.orders import follow_orders
from torch import nn

from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.initial_weights import InitialWeights, LoadedWeights


def begun(setup: Setup, weights: InitialWeights, folder: Path) -> LoadedWeights:
    """Begin with the weights."""
    checkpointer = Checkpointer(folder, CheckpointSettings(layout=setup.layout))
    checkpointer.tie({setup.objects["model"]: TIED})
    try:
        return checkpointer.load_initial_weights(setup.objects, weights)
    finally:
        checkpointer.close()


def differing(setup: Setup, state: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of what is not bit for bit as in the state."""
    live = setup.net.state_dict(keep_vars=True)
    return [name for name, one in live.items() if not torch.equal(whole(one), state[name])]


def begin_everywhere(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Begin in every layout of this world; tell what differs, and whether the optimizer is new."""
    path = Path(orders["weights"])
    state = torch.load(orders["state"], weights_only=True)
    found = {}
    for name, case in CASES[world_size].items():
        setup = Setup(case, 2)
        loaded = begun(setup, InitialWeights(path=path), Path(orders["folder"]))
        left = loaded.describe_left_out()
        fresh = not setup.optimizer.state
        found[name] = {"wrong": differing(setup, state), "left_out": left, "fresh": fresh}
    return {"found": found}


def begin_unfit(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Begin stages with a file that lacks names, has others, and has another shape."""
    setup = Setup(CASES[world_size]["pipeline"], 2)
    before = {name: one.tolist() for name, one in setup.net.state_dict().items()}
    weights = InitialWeights(path=Path(orders["weights"]), strict=orders["strict"])
    try:
        loaded = begun(setup, weights, Path(orders["folder"]))
    finally:
        changed = [name for name, one in setup.net.state_dict().items() if one.tolist() != before[name]]
        Path(orders["results"], f"changed-{dist.get_rank()}").write_text(json.dumps(changed))
    return {"left_out": loaded.describe_left_out(), "tensors": loaded.tensors}


def begin_two_models(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Begin two models, whose names in the file begin with theirs."""
    del world_size
    models = {"actor": nn.Linear(2, 2), "critic": nn.Linear(3, 1)}
    checkpointer = Checkpointer(Path(orders["folder"]), CheckpointSettings())
    checkpointer.load_initial_weights(models, InitialWeights(path=Path(orders["weights"])))
    checkpointer.close()
    return {name: one.weight.tolist() for name, one in models.items()}


if __name__ == "__main__":
    follow_orders(begin_everywhere, begin_unfit, begin_two_models)
