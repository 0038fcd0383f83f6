"""How the sharded tensors of an object of the user's own lie on ranks: of a moving average, say.

A model tells by its parameters where its tensors belong. Another object may not have its tensors
yet when it is loaded; so a save records which parameter each of them is cut like.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor import empty as empty_dtensor

from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.model_state import TiedNames, bare_name, live_state

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
        return {name: one for name, one in self.all().items() if isinstance(one, DTensor)}

    def describe(self, path: str, tensor: DTensor) -> SavedPlacement:
        """Return how a tensor lies on ranks, to save it; raises StateError if it is no values."""
        if any(isinstance(one, Partial) for one in tensor.placements):
            raise StateError(
                f"the state at {path} is a DTensor whose parts are still to be summed over ranks "
                f"({', '.join(map(str, tensor.placements))}); allowed are sharded and whole ones",
                hint="put .full_tensor() of it into the state",
            )
        sharded = self.sharded()
        same_ranks = [
            name for name, one in sharded.items() if one.device_mesh == tensor.device_mesh
        ]
        alike = [name for name in same_ranks if _is_alike(sharded[name], tensor)]
        named = [name for name in alike if _ends_with(path, name)]
        if alike:
            return {"like": max(named, key=len, default=alike[0]), "named": bool(named)}
        placements = [_encoded(one) for one in tensor.placements]
        if same_ranks and None not in placements:
            return {"mesh": same_ranks[0], "placements": placements}
        return {}


def _is_alike(one: DTensor, other: DTensor) -> bool:
    return one.shape == other.shape and one.placements == other.placements


def _ends_with(path: str, name: str) -> bool:
    """Return whether a path ends with the name of a parameter, which `name` has behind its model.

    Example: `average/shadow/blocks.0.weight` does with `model/blocks.0.weight`.
    """
    return bare_name(path).endswith("/" + name.partition("/")[2])


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
            cut = [_decoded(one) for one in placement["placements"]]
            yield empty_dtensor(shape, device_mesh=mesh.device_mesh, placements=cut)
