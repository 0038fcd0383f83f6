"""How the sharded tensors of an object of the user's own lie on ranks: of a moving average, say.

A model tells by its parameters where its tensors belong. Another object may not have its tensors
yet when it is loaded; so a save records which parameter each of them is cut like.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor import empty as empty_dtensor

from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.model_state import TiedNames, bare_name, live_state
from hpckit.values import dataclass, field

SavedPlacement = Mapping[str, Any]
"""JSON of a sharded tensor: `like` names a tensor of a model that is cut in the same way, and
`named` says that its name ends the tensor's own. Without one, `mesh` names a tensor on the same
ranks, and `placements` say how it is cut over them. Empty if no model tells."""


@dataclass(slots=True)
class ModelTensors:
    """The tensors of all registered models of this rank, by `<model>/<bare name>`.

    They are looked for when they are first needed: most runs have no such objects.
    """

    objects: Mapping[str, Any]
    tied: TiedNames
    _found: dict[str, torch.Tensor] | None = None
    _sharded: dict[str, DTensor] | None = None
    _alike: dict[tuple[Any, ...], list[str]] = field(default_factory=dict)
    _named: dict[str, list[str]] = field(default_factory=dict)

    def all(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name."""
        if self._found is None:
            models = {name: one for name, one in self.objects.items() if isinstance(one, nn.Module)}
            self._found = {
                f"{model}/{name}": tensor
                for model, one in models.items()
                for name, tensor in live_state(one).items()
                if isinstance(tensor, torch.Tensor)
            }
        return self._found

    def sharded(self) -> dict[str, DTensor]:
        """Return those that are sharded."""
        if self._sharded is None:
            self._sharded = {n: one for n, one in self.all().items() if isinstance(one, DTensor)}
            for name, one in self._sharded.items():
                self._alike.setdefault(_cut(one), []).append(name)
                self._named.setdefault(name.partition("/")[2], []).append(name)
        return self._sharded

    def describe(self, path: str, tensor: DTensor) -> SavedPlacement:
        """Return how a tensor lies on ranks, to save it; raises StateError if it is no values."""
        if any(isinstance(placement, Partial) for placement in tensor.placements):
            raise StateError(
                f"the state at {path} is a DTensor whose parts are still to be summed over ranks "
                f"({', '.join(map(str, tensor.placements))}); allowed are sharded and whole ones",
                hint="put .full_tensor() of it into the state",
            )
        sharded = self.sharded()
        for named in (True, False):
            names = self._named_by(path) if named else self._alike.get(_cut(tensor), [])
            for name in names:
                if _lies_as(sharded[name], tensor):
                    return {"like": name, "named": named}
        placements = [_encoded(placement) for placement in tensor.placements]
        meshes = (name for name, one in sharded.items() if one.device_mesh == tensor.device_mesh)
        mesh = next(meshes, None)
        if mesh is None or None in placements:
            return {}
        return {"mesh": mesh, "placements": placements}

    def _named_by(self, path: str) -> list[str]:
        """Return the tensors whose bare names end a path, the longest names first.

        Example: `average/shadow/blocks.0.weight` ends with `model/blocks.0.weight`'s.
        """
        parts = bare_name(path).split("/")
        ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
        return [name for end in ends for name in self._named.get(end, [])]


def _lies_as(one: DTensor, other: DTensor) -> bool:
    return _cut(one) == _cut(other) and one.device_mesh == other.device_mesh


def _cut(tensor: DTensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.placements)


def _encoded(placement: Placement) -> list[Any] | None:
    """Return a placement as JSON; None for one that depends on others, such as a strided shard."""
    if type(placement) is Shard:
        return ["shard", placement.dim]
    return ["replicate"] if type(placement) is Replicate else None


def _decoded(placement: list[Any]) -> Placement:
    return Shard(placement[1]) if placement[0] == "shard" else Replicate()


@dataclass(slots=True, kw_only=True)
class Placements:
    """Decides on what a rank reads the tensors of other objects into.

    `same_layout`: the checkpoint is of the layout of now. `cut`: the layout cuts models.
    """

    models: ModelTensors
    same_layout: bool
    cut: bool
    source: str
    _asks: bool | None = field(default=None)

    @property
    def may_shard(self) -> bool:
        """Whether a tensor may be sharded here: others are, or the layout is for that."""
        if self._asks is None:
            self._asks = self.cut or bool(self.models.sharded())
        return self._asks

    def template(
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
        found = next(self._made_again(shape, placement), None)
        if found is None and self.may_shard:
            raise StateError(
                f"{key} was sharded over ranks when {self.source} was saved, and nothing says how "
                "it is to be here: the object does not have it yet",
                hint="make it before run.steps(), as it is in the first step, such as p.clone() of "
                "each parameter; or put plain tensors into the state, by .full_tensor()",
            )
        return found

    def _made_again(self, shape: torch.Size, placement: SavedPlacement) -> Iterator[torch.Tensor]:
        like = self.models.all().get(placement.get("like", ""))
        if like is not None and like.shape == shape and (placement["named"] or self.same_layout):
            yield like
        mesh = self.models.sharded().get(placement.get("mesh", ""))
        if mesh is not None and self.same_layout:
            cut = [_decoded(item) for item in placement["placements"]]
            yield empty_dtensor(shape, device_mesh=mesh.device_mesh, placements=cut)
