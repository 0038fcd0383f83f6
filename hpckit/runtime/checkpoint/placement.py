"""How tensors lie on ranks: who writes how much of what all have, and what others are cut like.

Shares are even, and the same on every rank without communication. A tensor too large for an even share is cut
into pieces along its first dimension; otherwise all ranks would wait for the one with the largest embedding.

A model tells by its parameters where its sharded tensors belong. Another object, such as a moving average,
may not have its tensors yet when it is loaded; so a save records which parameter each of them is cut like.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor import empty as empty_dtensor

from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.model_state import TiedNames, live_state_dict, strip_wrapper_names
from hpckit.values import dataclass

SavedPlacement = Mapping[str, Any]
"""JSON of a sharded tensor: `like` names a tensor of a model that is cut in the same way, and
`named` says that its name ends the tensor's own. Without one, `mesh` names a tensor on the same
ranks, and `placements` say how it is cut over them. Empty if no model tells."""


@dataclass(eq=False)
class ModelTensors:
    """The tensors of all registered models of this rank, by `<model>/<bare name>`.

    They are looked for when they are first needed: most runs have no such objects.
    """

    objects: Mapping[str, Any]
    tied: TiedNames

    @cached_property
    def tensors_by_name(self) -> dict[str, torch.Tensor]:
        """The tensors by name."""
        models = {name: one for name, one in self.objects.items() if isinstance(one, nn.Module)}
        return {
            f"{model}/{name}": tensor
            for model, one in models.items()
            for name, tensor in live_state_dict(one).items()
            if isinstance(tensor, torch.Tensor)
        }

    @cached_property
    def sharded_tensors(self) -> dict[str, DTensor]:
        """Those that are sharded."""
        return {name: one for name, one in self.tensors_by_name.items() if isinstance(one, DTensor)}

    @cached_property
    def _names_by_placement(self) -> dict[object, list[str]]:
        found: dict[object, list[str]] = {}
        for name, one in self.sharded_tensors.items():
            found.setdefault(_placement_key(one), []).append(name)
        return found

    def describe_placement(self, path: str, tensor: DTensor) -> SavedPlacement:
        """Return how a tensor lies on ranks, to save it; raises StateError if it is no values."""
        if any(isinstance(placement, Partial) for placement in tensor.placements):
            raise StateError(
                f"the state at {path} is a DTensor whose parts are still to be summed over ranks "
                f"({', '.join(map(str, tensor.placements))}); allowed are sharded and whole ones",
                hint="put .full_tensor() of it into the state",
            )
        alike = self._names_by_placement.get(_placement_key(tensor), [])
        # `average/shadow/blocks.0.weight` ends with the bare name of `model/blocks.0.weight`.
        parts = strip_wrapper_names(path).split("/")
        ends = {"/".join(parts[start:]): start for start in range(1, len(parts))}
        named = {one: ends[bare] for one in alike if (bare := one.partition("/")[2]) in ends}
        if named:
            return {"like": min(named, key=named.__getitem__), "named": True}
        if alike:
            return {"like": alike[0], "named": False}
        placements = [_placement_to_json(placement) for placement in tensor.placements]
        mesh = next(
            (n for n, one in self.sharded_tensors.items() if one.device_mesh == tensor.device_mesh), None
        )
        if mesh is None or None in placements:
            return {}
        return {"mesh": mesh, "placements": placements}


def _placement_key(tensor: DTensor) -> object:
    return tuple(tensor.shape), tuple(tensor.placements), tensor.device_mesh


def _placement_to_json(placement: Placement) -> list[Any] | None:
    """Return a placement as JSON; None for one that depends on others, such as a strided shard."""
    if type(placement) is Shard:
        return ["shard", placement.dim]
    return ["replicate"] if type(placement) is Replicate else None


def _placement_from_json(placement: list[Any]) -> Placement:
    return Shard(placement[1]) if placement[0] == "shard" else Replicate()


@dataclass(kw_only=True)
class Placements:
    """Decides on what a rank reads the tensors of other objects into.

    `same_layout`: the checkpoint is of the layout of now. `cut`: the layout cuts models.
    """

    models: ModelTensors
    same_layout: bool
    cut: bool
    source: str

    @cached_property
    def may_shard(self) -> bool:
        """Whether a tensor may be sharded here: others are, or the layout is for that."""
        return self.cut or bool(self.models.sharded_tensors)

    def find_sharding_template(
        self, key: str, saved: tuple[torch.Size, SavedPlacement | None], live: Any
    ) -> torch.Tensor | None:
        """Return a tensor that is cut as that of a key has to be; None for a whole one.

        `saved` is its shape and how it was sharded, None if it was not; `live` is what the object
        has at its place now. Raises StateError if nothing tells.
        """
        shape, placement = saved
        known = isinstance(live, torch.Tensor) and live.shape == shape
        if known and isinstance(live, DTensor):
            return live
        if placement is None or (known and not self.same_layout):
            return None
        found = next(self._list_sharding_templates(shape, placement), None)
        if found is None and self.may_shard:
            raise StateError(
                f"{key} was sharded over ranks when {self.source} was saved, and nothing says how "
                "to shard it here: the object does not have it yet",
                hint="make it before run.steps(), as it is in the first step, such as p.clone() of "
                "each parameter; or put plain tensors into the state, by .full_tensor()",
            )
        return found

    def _list_sharding_templates(
        self, shape: torch.Size, placement: SavedPlacement
    ) -> Iterator[torch.Tensor]:
        like = self.models.tensors_by_name.get(placement.get("like", ""))
        if like is not None and like.shape == shape and (placement["named"] or self.same_layout):
            yield like
        mesh = self.models.sharded_tensors.get(placement.get("mesh", ""))
        if mesh is not None and self.same_layout:
            cut = [_placement_from_json(item) for item in placement["placements"]]
            yield empty_dtensor(shape, device_mesh=mesh.device_mesh, placements=cut)


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


def count_tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor; for a sharded tensor, of all its shards."""
    return tensor.numel() * tensor.element_size()


def assign_keys_to_shares(sizes: Mapping[K, int], shares: int) -> dict[K, int]:
    """Assign each key to one of `shares` shares, evenly by size; the same on every rank."""
    loads = [(0, share) for share in range(shares)]  # a heap: the least load, the first of equals
    owners: dict[K, int] = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        load, owners[key] = loads[0]
        heapq.heapreplace(loads, (load + sizes[key], owners[key]))
    return owners


def cut_own_tensor_pieces(
    tensors: Mapping[str, torch.Tensor], rank: int, world_size: int
) -> list[TensorPiece]:
    """Return the share of a rank in tensors that all ranks have: views of them, no copies."""
    extents = tuple(
        TensorExtent(key, one.shape[0] if one.dim() else None, count_tensor_bytes(one))
        for key, one in tensors.items()
    )
    pieces = []
    for at in find_own_tensor_rows(extents, rank, world_size):
        tensor = tensors[at.key]
        rows = tensor if at.stop is None else tensor[at.start : at.stop]
        pieces.append(TensorPiece(key=at.key, start=at.start, tensor=rows, shape=tensor.shape))
    return pieces


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
def find_own_tensor_rows(
    extents: tuple[TensorExtent, ...], rank: int, world_size: int
) -> tuple[TensorRows, ...]:
    """Return the share of a rank, like `cut_own_tensor_pieces`; cached, as every save asks for it."""
    total = sum(extent.size for extent in extents)
    limit = max(LEAST, total // (world_size * _PER_RANK)) if world_size > 1 else total
    pieces = {
        (at.key, at.start): (at, size) for extent in extents for at, size in _cut_into_pieces(extent, limit)
    }
    owners = assign_keys_to_shares({at: size for at, (_, size) in pieces.items()}, world_size)
    return tuple(at for key, (at, _) in pieces.items() if owners[key] == rank)


def _cut_into_pieces(extent: TensorExtent, limit: int) -> Iterator[tuple[TensorRows, int]]:
    if extent.rows is None or extent.size <= limit:
        yield TensorRows(extent.key), extent.size
        return
    count = min(extent.rows, -(-extent.size // limit))
    step = -(-extent.rows // count)
    row = extent.size // extent.rows
    for start in range(0, extent.rows, step):
        stop = min(start + step, extent.rows)
        yield TensorRows(extent.key, start, stop), (stop - start) * row
