"""What this rank has of a tensor that is cut over ranks (DTensor), and of a whole one like it.

DTensors are known by what they can do: to import their type takes a second, and whoever has one has
imported it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def local_shard_of_tensor(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def slice_tensor_like_shard(whole: Tensor, like: Any) -> Tensor:
    """Return what this rank has of a whole tensor if that is cut like another one: a view of it."""
    if hasattr(like, "to_local"):
        (chunk,) = like.__create_chunk_list__()  # as checkpoints ask
        for axis, (offset, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
            whole = whole.narrow(axis, offset if size else 0, size)
    return whole
