"""Work across ranks in the shipped experiments: split a batch, sum the results of all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpckit.errors import ConfigError


def share_of(batch_size: int, world_size: int) -> int:
    """Return the number of samples of a global batch for each rank; raises ConfigError."""
    if batch_size < 1 or batch_size % world_size:
        raise ConfigError(
            f"batch_size={batch_size} cannot be shared out evenly over {world_size} ranks",
            hint=f"batch_size is that of all ranks together: take a multiple of {world_size}.",
        )
    return batch_size // world_size


def total(*values: float | torch.Tensor, device: torch.device) -> list[float]:
    """Return the sum of each value over all ranks; every rank must call it."""
    sums = torch.stack([torch.as_tensor(value).detach().double().to(device) for value in values])
    dist.all_reduce(sums)
    return [float(value) for value in sums.tolist()]
