"""One rank of a world that builds a model on meta in many layouts, and tells what it has then."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from byte_model import ByteModel, plan
from byte_world import batch, make_run, run_cases
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import hpckit
from hpckit.runtime.parallel.batch_checks import checksum_tensors


class Ramp(nn.Module):
    """Two buffers that are computed, of which checkpoints keep one."""

    kept: Tensor
    passing: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.empty(3, dtype=torch.long))
        self.register_buffer("passing", torch.empty(5), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill both."""
        self.kept.copy_(torch.arange(3, device=self.kept.device))
        self.passing.copy_(torch.linspace(0, 1, 5, device=self.passing.device))


def build() -> nn.Module:
    """Return the byte model, with buffers in its blocks."""
    model = ByteModel()
    for block in model.blocks:
        block.add_module("ramp", Ramp())
    return model


class WatchedInit:
    """Initialises modules, and counts the elements of earlier ones that are still there."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.most = 0
        self._made: list[weakref.ref[Tensor]] = []

    def __call__(self, name: str, module: nn.Module) -> None:
        """Initialise one module."""
        hpckit.reset_parameters(name, module)
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        self._made += [weakref.ref(one) for one in own]
        there = [one for one in (made() for made in self._made) if one is not None]
        self.most = max(self.most, sum(one.numel() for one in there))
        self.names.append(name)


def made(case: dict[str, Any]) -> dict[str, Any]:
    """Return what a rank has after `parallelize`, by name, and after two steps."""
    run = make_run(case)
    init = WatchedInit()
    before = torch.get_rng_state()
    model = run.parallelize(build, plan(), init=init)
    found: dict[str, Any] = {
        "untouched": bool(torch.equal(before, torch.get_rng_state())),
        "called": init.names,
        "most": init.most,
        "values": {name: checksum_tensors(whole(one)) for name, one in named(model).items()},
        "spare_bytes": sum(spare_bytes(one) for one in named(model).values()),
        "tensors": len({id(parameter) for parameter in model.parameters()}),
        "losses": [],
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    share = run.share(8)
    for step in range(2):
        inputs, targets = (one[share.rows] for one in batch(8, step))
        optimizer.zero_grad()
        found["losses"].append(float(run.train_step(model, inputs, targets, share=share)))
        optimizer.step()
    return found


def named(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by the names of the model that was built."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name.removeprefix("module."): one for name, one in tensors}


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def spare_bytes(tensor: Tensor) -> int:
    """Return how much more memory a tensor holds than it shows."""
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own.untyped_storage().nbytes() - own.numel() * own.element_size()


if __name__ == "__main__":
    run_cases(made)
