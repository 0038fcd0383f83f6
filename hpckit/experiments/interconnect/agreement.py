"""What all ranks of a measurement must know alike: decisions of rank 0, and what each one saw.

Everything goes through tensors of the process group that is measured: there is no other one.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpckit.experiments.interconnect.operations import RankWorld


def decided(value: Any, world: RankWorld) -> Any:
    """Return rank 0's value (plain JSON) on every rank; each of them must call it."""
    if world.size == 1:
        return value
    own = _bytes(value, world)
    length = torch.tensor([len(own)], device=world.device)
    dist.broadcast(length, 0)
    if world.rank != 0:
        own = torch.empty(int(length.item()), dtype=torch.uint8, device=world.device)
    dist.broadcast(own, 0)
    return _value(own)


def gathered(value: Any, world: RankWorld) -> list[Any]:
    """Return every rank's value (plain JSON), by rank; each of them must call it."""
    if world.size == 1:
        return [value]
    own = _bytes(value, world)
    length = torch.tensor([len(own)], device=world.device)
    dist.all_reduce(length, op=dist.ReduceOp.MAX)
    # JSON ignores blanks behind it.
    padded = torch.full((int(length.item()),), ord(" "), dtype=torch.uint8, device=world.device)
    padded[: len(own)] = own
    parts = [torch.empty_like(padded) for _ in range(world.size)]
    dist.all_gather(parts, padded)
    return [_value(part) for part in parts]


def anywhere(*, here: bool, world: RankWorld) -> bool:
    """Return whether it is true on any rank; each of them must call it."""
    if world.size == 1:
        return here
    flag = torch.tensor([int(here)], device=world.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def _bytes(value: Any, world: RankWorld) -> Tensor:
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=world.device)


def _value(data: Tensor) -> Any:
    return json.loads(bytes(data.cpu().tolist()))
