"""Who writes how much of what all ranks have alike.

Responsible for even shares, the same on every rank without a word between them; it must not know
objects or files. A tensor too large for an even share is cut into pieces along its first
dimension: else the rank with the largest embedding would write while all others wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

LEAST = 1 << 22
"""Bytes below which a tensor is not cut: the piece would cost more than it evens out."""

_PER_RANK = 8
"""A rank's share is at least so many pieces: no share is an eighth larger than another."""

K = TypeVar("K", str, tuple[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of a tensor, from `start` on; `shape` is that of the whole tensor."""

    key: str
    start: int
    tensor: torch.Tensor
    shape: torch.Size


def size(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor, of all its shards where it is sharded."""
    return tensor.numel() * tensor.element_size()


def share_out(sizes: Mapping[K, int], shares: int) -> dict[K, int]:
    """Return which of so many shares each key falls to, evenly by size; alike on every rank."""
    loads = [0] * shares
    owners: dict[K, int] = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        owners[key] = loads.index(min(loads))
        loads[owners[key]] += sizes[key]
    return owners


def own_pieces(tensors: Mapping[str, torch.Tensor], rank: int, world_size: int) -> list[Piece]:
    """Return the share of a rank in tensors that all ranks have: views of them, none copied."""
    total = sum(size(one) for one in tensors.values())
    limit = max(LEAST, total // (world_size * _PER_RANK)) if world_size > 1 else total
    pieces = {
        (piece.key, piece.start): piece
        for key, one in tensors.items()
        for piece in _cut(key, one, limit)
    }
    owners = share_out({at: size(piece.tensor) for at, piece in pieces.items()}, world_size)
    return [piece for at, piece in pieces.items() if owners[at] == rank]


def _cut(key: str, tensor: torch.Tensor, limit: int) -> list[Piece]:
    if tensor.dim() == 0 or size(tensor) <= limit:
        return [Piece(key=key, start=0, tensor=tensor, shape=tensor.shape)]
    rows = tensor.shape[0]
    count = min(rows, -(-size(tensor) // limit))
    step = -(-rows // count)
    return [
        Piece(key=key, start=start, tensor=tensor[start : start + step], shape=tensor.shape)
        for start in range(0, rows, step)
    ]
