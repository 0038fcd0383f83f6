"""Divides between ranks what all ranks have in common: which rank writes how much of it.

Shares are even, and the same on every rank without communication. A tensor too large for an even
share is cut into pieces along its first dimension; otherwise all ranks would wait for the one with
the largest embedding.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

import torch

from hpckit.values import dataclass

LEAST = 1 << 22
"""Bytes below which a tensor is not cut: the piece would cost more than it evens out."""

_PER_RANK = 8
"""Minimum number of pieces per share: no share is an eighth larger than another."""

K = TypeVar("K", str, tuple[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPiece:
    """Rows of a tensor, beginning at `start`; `shape` is that of the whole tensor."""

    key: str
    start: int
    tensor: torch.Tensor
    shape: torch.Size


def size(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor; for a sharded tensor, of all its shards."""
    return tensor.numel() * tensor.element_size()


def assign_shares(sizes: Mapping[K, int], shares: int) -> dict[K, int]:
    """Assign each key to one of `shares` shares, evenly by size; the same on every rank."""
    loads = [(0, share) for share in range(shares)]  # a heap: the least load, the first of equals
    owners: dict[K, int] = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        load, owners[key] = loads[0]
        heapq.heapreplace(loads, (load + sizes[key], owners[key]))
    return owners


def own_pieces(
    tensors: Mapping[str, torch.Tensor], rank: int, world_size: int
) -> list[TensorPiece]:
    """Return the share of a rank in tensors that all ranks have: views of them, no copies."""
    extents = tuple(
        TensorExtent(key, one.shape[0] if one.dim() else None, size(one))
        for key, one in tensors.items()
    )
    return [_view(at, tensors[at.key]) for at in own_rows(extents, rank, world_size)]


@dataclass(frozen=True, slots=True)
class TensorExtent:
    """What sharding needs of a tensor: `rows`, None if it has no dimension, and `size` in bytes."""

    key: str
    rows: int | None
    size: int


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Rows of a tensor, from `start` up to `stop`; `stop` is None if it is the whole tensor."""

    key: str
    start: int = 0
    stop: int | None = None


@lru_cache(maxsize=2)
def own_rows(
    extents: tuple[TensorExtent, ...], rank: int, world_size: int
) -> tuple[TensorRows, ...]:
    """Return the share of a rank, as `own_pieces` does; cached, because every save asks for it."""
    total = sum(extent.size for extent in extents)
    limit = max(LEAST, total // (world_size * _PER_RANK)) if world_size > 1 else total
    pieces = {
        (at.key, at.start): (at, size) for extent in extents for at, size in _cut(extent, limit)
    }
    owners = assign_shares({at: size for at, (_, size) in pieces.items()}, world_size)
    return tuple(at for key, (at, _) in pieces.items() if owners[key] == rank)


def _cut(extent: TensorExtent, limit: int) -> Iterator[tuple[TensorRows, int]]:
    """Yield the pieces of a tensor, and their bytes."""
    if extent.rows is None or extent.size <= limit:
        yield TensorRows(extent.key), extent.size
        return
    count = min(extent.rows, -(-extent.size // limit))
    step = -(-extent.rows // count)
    row = extent.size // extent.rows
    for start in range(0, extent.rows, step):
        stop = min(start + step, extent.rows)
        yield TensorRows(extent.key, start, stop), (stop - start) * row


def _view(at: TensorRows, tensor: torch.Tensor) -> TensorPiece:
    rows = tensor if at.stop is None else tensor[at.start : at.stop]
    return TensorPiece(key=at.key, start=at.start, tensor=rows, shape=tensor.shape)
