"""What a rank reads of a checkpoint into each registered object, and how the object gets it.

A reader first says which of the saved names it has, and raises StateError for one that it needs and that was
not saved. It reads into tensors of its own: a load that fails half-way must leave no trace in the objects.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from hpckit.model.counted import format_short_list
from hpckit.runtime.checkpoint import model_state
from hpckit.runtime.checkpoint.encoding import (
    StateEncoder,
    decode_value,
    encoded_dict_items,
    find_tensor_keys,
    find_tensor_placements,
)
from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.model_state import ParameterNames, SavedGroup
from hpckit.runtime.checkpoint.placement import Placements
from hpckit.values import dataclass, field

_log = logging.getLogger("hpckit.rank")

SavedTensors = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Shape and type of each tensor of a checkpoint, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingContext:
    """What all readers of a load share.

    `where` is this rank's place in the layout, and `source` names the checkpoint and its layout:
    words for messages. `placements` says how tensors of other objects than models are cut.
    """

    saved: SavedTensors
    names: ParameterNames
    placements: Placements
    where: str
    source: str

    def missing_names_error(self, path: str, names: Sequence[str]) -> StateError:
        """Return the error for names that were not saved."""
        return StateError(
            f"{path} has {format_short_list(names, 1)} here ({self.where}), which {self.source} lacks",
            hint="build the registered objects as they were for the save, or begin a new run",
        )


class StateReader(ABC):
    """Reads the state of one object."""

    def saved_names(self) -> list[str]:
        """Return the saved names that ranks may share out; the same on every rank."""
        return []

    def own_names(self) -> frozenset[str]:
        """Return the names that this rank has; only those among the saved ones count."""
        return frozenset()

    @abstractmethod
    def prepare_for_orphaned_names(self, orphans: Sequence[str]) -> None:
        """Take note of saved names that no rank has; raises StateError if that is an error."""

    @abstractmethod
    def make_empty_tensors(self) -> dict[str, torch.Tensor]:
        """Return an empty tensor to read into for each key."""

    @abstractmethod
    def load_into_object(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the tensors that were read into the object; raises what the object raises."""


def make_tensor_like_live(saved: SavedTensors, key: str, live: Any = None) -> torch.Tensor:
    """Return an empty tensor for a key, sharded like the live one, or on the CPU."""
    shape, dtype = saved[key]
    if isinstance(live, DTensor) and live.shape == shape:
        return torch.empty_like(live, dtype=dtype)
    return torch.empty(shape, dtype=dtype)


@dataclass(slots=True)
class _PlainReader(StateReader):
    """Reads all of a state, which is the same on every rank, or sharded over them."""

    path: str
    value: Any
    skeleton: Any
    context: ReadingContext
    _templates: dict[str, torch.Tensor | None] = field(default_factory=dict)

    def prepare_for_orphaned_names(self, orphans: Sequence[str]) -> None:  # noqa: ARG002  # every rank reads all
        """Find how its tensors are cut here; raises StateError if nothing tells."""
        live, saved = self._find_live_tensors(), self.context.saved
        for key, placement in find_tensor_placements(self.skeleton):
            shape, _ = saved[key]
            found = self.context.placements.find_sharding_template(key, (shape, placement), live.get(key))
            self._templates[key] = found

    def _find_live_tensors(self) -> Mapping[str, torch.Tensor]:
        """Return what the object has now, by key; nothing where no tensor of it may be sharded.

        Asking is left out where it can be: a loader of data may start its workers for it.
        """
        kept = [
            placement is not None or self.context.saved[key][1] != torch.uint8
            for key, placement in find_tensor_placements(self.skeleton)
        ]
        if not any(kept) or not self.context.placements.may_shard:
            return {}
        encoder = StateEncoder()
        try:
            encoder.encode(self.path, self.value.state_dict())
        except Exception as error:  # noqa: BLE001  # the user's code: it may have no state yet
            _log.debug("%s has no state before it is loaded: %s", self.path, error)
            return {}
        return encoder.tensors

    def make_empty_tensors(self) -> dict[str, torch.Tensor]:
        return {
            key: make_tensor_like_live(self.context.saved, key, self._templates.get(key))
            for key in find_tensor_keys(self.skeleton)
        }

    def load_into_object(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.value.load_state_dict(decode_value(self.skeleton, tensors))


@dataclass(slots=True)
class _ModelReader(StateReader):
    """Reads the parameters and buffers that a model has on this rank."""

    path: str
    model: nn.Module
    saved: Mapping[str, Any]
    context: ReadingContext
    _live: dict[str, Any] = field(default_factory=dict)
    _aliases: dict[str, str] = field(default_factory=dict)
    _chosen: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find what each name is stored under; raises StateError if one was not saved."""
        self._live = model_state.live_state_dict(self.model)
        tied = self.context.placements.models.tied
        self._aliases = model_state.map_tied_names(self.model, tied)
        found = {name: self._find_saved_name(name) for name in self._live}
        lacking = [name for name, one in found.items() if one is None]
        if lacking:
            raise self.context.missing_names_error(self.path, lacking)
        self._chosen = {name: one for name, one in found.items() if one is not None}

    def _find_saved_name(self, name: str) -> str | None:
        if name in self.saved:
            return name
        others = model_state.list_names_of_tied_tensor(self._live, self._aliases, name)
        return next((other for other in others if other in self.saved), None)

    def saved_names(self) -> list[str]:
        return sorted(self.saved)

    def own_names(self) -> frozenset[str]:
        return frozenset({*self._chosen.values(), *self._live})

    def prepare_for_orphaned_names(self, orphans: Sequence[str]) -> None:
        """Read names that no rank has, too: the model may know them, or say that it does not."""
        self._chosen |= {name: name for name in orphans}

    def make_empty_tensors(self) -> dict[str, torch.Tensor]:
        return {
            key: make_tensor_like_live(self.context.saved, key, self._live.get(name))
            for name, chosen in self._chosen.items()
            for key in find_tensor_keys(self.saved[chosen])
        }

    def load_into_object(self, tensors: Mapping[str, torch.Tensor]) -> None:
        state = {name: decode_value(self.saved[chosen], tensors) for name, chosen in self._chosen.items()}
        model_state.load_model_state(self.model, state)


@dataclass(slots=True)
class _OptimizerReader(StateReader):
    """Reads the state of the parameters that an optimizer has on this rank.

    `skeletons` are those of the ranks that saved it; what several have is the first one's. `_state`
    is that of parameters, still encoded, `_rest` what belongs to none.
    """

    path: str
    optimizer: Optimizer
    skeletons: Sequence[Any]
    context: ReadingContext
    _state: dict[str, Any] = field(init=False)
    _groups: list[SavedGroup] = field(default_factory=list)
    _rest: Sequence[Any] = field(init=False)
    _names: frozenset[str] = field(init=False)
    _chosen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the saved name of each parameter; raises StateError if there is none."""
        parts = [encoded_dict_items(skeleton) for skeleton in self.skeletons]
        self._state = _merge_parts_keeping_first(encoded_dict_items(part["state"]) for part in parts)
        self._rest = [parts[0]["others"], parts[0]["more"]]
        for group in map(encoded_dict_items, chain.from_iterable(part["groups"] for part in parts)):
            names = frozenset(group["params"])
            self._groups.append(SavedGroup(names=names, options=group["options"]))
        self._names = frozenset(chain.from_iterable(group.names for group in self._groups))
        tied = _merge_parts_keeping_first(encoded_dict_items(part["tied"]) for part in parts)
        stored = model_state.list_stored_names(self.optimizer, self.context.names)
        lacking: list[str] = []
        for name, parameter in zip(
            stored, model_state.list_optimizer_parameters(self.optimizer), strict=True
        ):
            known = [tied.get(one, one) for one in (name, *self.context.names.all_names(parameter))]
            chosen = next((one for one in known if one in self._names), None)
            (lacking if chosen is None else self._chosen).append(chosen or name)
        if lacking:
            raise self.context.missing_names_error(self.path, lacking)

    def saved_names(self) -> list[str]:
        return sorted(self._names)

    def own_names(self) -> frozenset[str]:
        parameters = model_state.list_optimizer_parameters(self.optimizer)
        names = (self.context.names.all_names(parameter) for parameter in parameters)
        return frozenset(self._chosen).union(*names)

    def prepare_for_orphaned_names(self, orphans: Sequence[str]) -> None:
        """Raise StateError if there are any: their state would be lost."""
        if orphans:
            raise StateError(
                f"{self.context.source} has state of {orphans[0]} in {self.path}, and of "
                f"{len(orphans) - 1} more, that no rank has",
                hint="give the optimizer the same parameters as when it was saved",
            )

    def make_empty_tensors(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        parameters = model_state.list_optimizer_parameters(self.optimizer)
        for name, parameter in zip(self._chosen, parameters, strict=True):
            state = self._state.get(name)
            entries: list[tuple[Any, Any]] = [("", state)]
            if isinstance(state, dict) and _ENTRIES.intersection(state):
                entries = [(key, one) for pairs in state.values() for key, one in pairs]
            for entry, one in entries:
                live = None if entry == "step" else parameter
                for key in find_tensor_keys(one):
                    tensors[key] = make_tensor_like_live(self.context.saved, key, live)
        for key in find_tensor_keys([self._rest, *(group.options for group in self._groups)]):
            tensors[key] = make_tensor_like_live(self.context.saved, key)
        return tensors

    def load_into_object(self, tensors: Mapping[str, torch.Tensor]) -> None:
        numbers = iter(range(len(self._chosen)))
        options = model_state.match_saved_options(self.path, self.optimizer, self._chosen, self._groups)
        groups = []
        for group, saved in zip(self.optimizer.param_groups, options, strict=True):
            kept = (
                model_state.extract_hyperparameters(group) if saved is None else decode_value(saved, tensors)
            )
            names = {"param_names": group["param_names"]} if "param_names" in group else {}
            here = [next(numbers) for _ in group["params"]]
            groups.append(kept | names | {"params": here})
        state = {
            number: decode_value(self._state[name], tensors)
            for number, name in enumerate(self._chosen)
            if name in self._state
        }
        others, more = (decode_value(value, tensors) for value in self._rest)
        self.optimizer.load_state_dict(more | {"state": state | others, "param_groups": groups})


_ENTRIES = frozenset({"dict", "ordered"})
"""Kinds of a parameter's state that have entries, as an optimizer's of torch."""


def join_model_parts(skeletons: Sequence[Any]) -> dict[str, Any]:
    """Put the parts of a saved model together, still encoded, by name."""
    return _merge_parts_keeping_first(encoded_dict_items(skeleton) for skeleton in skeletons)


def _merge_parts_keeping_first(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for part in parts:
        for name, one in part.items():
            joined.setdefault(name, one)
    return joined


def make_state_reader(
    path: str, value: Any, skeletons: Sequence[Any], context: ReadingContext
) -> StateReader:
    """Return what reads the saved parts of an object; raises StateError if they do not fit it."""
    if isinstance(value, nn.Module):
        return _ModelReader(path, value, join_model_parts(skeletons), context)
    if isinstance(value, Optimizer) and model_state.is_optimizer_saved_by_name(skeletons[0]):
        return _OptimizerReader(path, value, skeletons, context)
    return _PlainReader(path, value, skeletons[0], context)
