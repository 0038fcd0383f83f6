"""Registered objects as flat tensors, and this rank's share of them.

Decides which rank saves what. A tensor sharded over ranks (DTensor) is saved by those that hold its
shards; parameters under DistributedDataParallel, and their optimizer's state, are spread over the
ranks (placement.py); the first rank that has it saves everything else. So any number of ranks, in
any layout, can load what any other saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.sample_order import Position
from hpckit.runtime.checkpoint import model_state
from hpckit.runtime.checkpoint.encoding import SKELETON, StateEncoder, encode_state, json_to_byte_tensor
from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.group import Group, KeyAgreement, KeyFacts, KeyShare, Part
from hpckit.runtime.checkpoint.model_state import ParameterNames, TiedNames
from hpckit.runtime.checkpoint.placement import ModelTensors, TensorPiece, cut_own_tensor_pieces
from hpckit.runtime.generators import preserve_generators, state_dict
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCapture:
    """What one rank saves: its tensors, and the names of all objects, and of all models.

    `pieces` are its rows of tensors that are cut over the ranks.
    """

    position: Position
    objects: tuple[str, ...]
    models: tuple[str, ...] = ()
    tensors: Mapping[str, torch.Tensor]
    pieces: tuple[TensorPiece, ...] = ()

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self.position.step


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedObject:
    """The state of one object on this rank.

    `by_name`: ranks may hold different names of it, as pipeline stages do. `alike` describes what
    has to be the same on every rank all the same.
    """

    skeleton: Any
    tensors: Mapping[str, torch.Tensor]
    by_name: bool
    is_model: bool = False
    alike: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedObjects:
    """The states of all registered objects on this rank; the tensors are the live ones.

    `copied` are the keys of tensors that DDP keeps the same on all ranks.
    """

    objects: Mapping[str, EncodedObject]
    copied: frozenset[str]

    def describe_keys_to_agree_on(self) -> KeyFacts:
        """Return what ranks have to agree on."""
        return KeyFacts(
            keys={
                key: (_format_shape_and_type(tensor), self._classify_tensor_distribution(key, tensor))
                for encoded in self.objects.values()
                if encoded.by_name
                for key, tensor in encoded.tensors.items()
            },
            alike={
                name: one.alike if one.by_name else _describe_tensors(one.tensors)
                for name, one in sorted(self.objects.items())
            },
        )

    def _classify_tensor_distribution(self, key: str, tensor: torch.Tensor) -> str:
        if isinstance(tensor, DTensor):
            return "sharded"
        return "copied" if key in self.copied else "plain"

    def capture_own_share(self, position: Position, share: KeyShare, rank: int) -> StateCapture:
        """Return this rank's share of the state at a position."""
        first, tensors, copied = rank == share.ranks[0], {}, {}
        for name, one in self.objects.items():
            writes = first if one.by_name else rank == 0
            if writes:
                tensors[f"{name}{SKELETON}{rank or ''}"] = json_to_byte_tensor(one.skeleton)
            for key, tensor in one.tensors.items():
                if key in share.foreign and _find_tensor_ranks(tensor) <= {*share.ranks}:
                    continue
                if isinstance(tensor, DTensor):
                    tensors[key] = tensor
                elif one.by_name and key in self.copied:
                    copied[key] = tensor
                elif writes:
                    tensors[key] = tensor
        shares = cut_own_tensor_pieces(copied, share.ranks.index(rank), len(share.ranks))
        tensors |= {piece.key: piece.tensor for piece in shares if piece.tensor.shape == piece.shape}
        return StateCapture(
            position=position,
            objects=tuple(sorted(self.objects)),
            models=tuple(sorted(name for name, one in self.objects.items() if one.is_model)),
            tensors=tensors | encode_state(generators_path_of_rank(rank), state_dict()),
            pieces=tuple(piece for piece in shares if piece.tensor.shape != piece.shape),
        )


class StateCapturer:
    """Captures the state of all ranks: what there is, and who writes what of it."""

    def __init__(self, group: Group, layout: Layout) -> None:
        self._group = group
        self._agreement = KeyAgreement(group)
        self._staged = layout.pipeline > 1
        self.tied: TiedNames = {}

    def capture_own_share(self, objects: Mapping[str, Any], position: Position) -> StateCapture:
        """Capture this rank's share of the state at a position; collective.

        The tensors are the live ones, not copies. Raises StateError on every rank if one of them
        holds what cannot be saved, or what does not go together.
        """
        encoded = self._group.call_on_this_rank(
            lambda: encode_objects(objects, self.tied, staged=self._staged)
        )
        facts = None if encoded.value is None else encoded.value.describe_keys_to_agree_on()
        share = self._agreement.agree_on_key_share(Part(value=facts, problem=encoded.problem))
        captured = encoded.value_or_raise("capturing the state")
        return captured.capture_own_share(position, share, self._group.rank)


def encode_objects(objects: Mapping[str, Any], tied: TiedNames, *, staged: bool) -> EncodedObjects:
    """Encode all registered objects; raises StateError.

    `staged`: ranks hold different stages of the models. When a run saves must not change what it
    draws: a data loader's `state_dict` may draw a seed.
    """
    names = model_state.name_parameters(objects, tied)
    models = ModelTensors(objects, tied)
    with preserve_generators():
        encoded = {name: _encode_object(name, one, names, models) for name, one in objects.items()}
    if staged:
        _refuse_unnamed_parameters(objects, names)
    return EncodedObjects(objects=encoded, copied=_find_ddp_tensor_keys(objects, encoded, tied))


def _encode_object(name: str, value: Any, names: ParameterNames, models: ModelTensors) -> EncodedObject:
    encoder = StateEncoder()
    if isinstance(value, nn.Module):
        aliases = model_state.map_tied_names(value, models.tied)
        skeleton = model_state.encode_model_state(encoder, name, value, aliases)
        tensors = encoder.tensors
        return EncodedObject(skeleton=skeleton, tensors=tensors, by_name=True, is_model=True)
    state = value.state_dict()
    if not (isinstance(value, Optimizer) and model_state.is_torch_optimizer_state(value, state)):
        encoder.place = models.describe_placement
        skeleton = encoder.encode(name, state)
        return EncodedObject(skeleton=skeleton, tensors=encoder.tensors, by_name=False)
    return EncodedObject(
        skeleton=model_state.encode_optimizer_state(encoder, name, value, state, names),
        tensors=encoder.tensors,
        by_name=True,
        alike=_describe_parameter_groups(value, names),
    )


def _describe_parameter_groups(optimizer: Optimizer, names: ParameterNames) -> str:
    """Describe what of an optimizer has to be alike: its groups, and parameters without a name."""
    stored = model_state.list_stored_names(optimizer, names)
    parameters = zip(stored, model_state.list_optimizer_parameters(optimizer), strict=True)
    unnamed = {name: one for name, one in parameters if model_state.is_stored_by_number(name)}
    return f"{len(optimizer.param_groups)} groups\n{_describe_tensors(unnamed)}"


def _refuse_unnamed_parameters(objects: Mapping[str, Any], names: ParameterNames) -> None:
    for name, one in objects.items():
        stored = model_state.list_stored_names(one, names) if isinstance(one, Optimizer) else []
        number = next(filter(model_state.is_stored_by_number, stored), None)
        if number is not None:
            raise StateError(
                f"parameter {number.removeprefix('.')} of {name} is in no registered model; with "
                "pipeline stages its number means another parameter on every rank",
                hint="register the model, too: run.state(model=…)",
            )


def _find_ddp_tensor_keys(
    objects: Mapping[str, Any], encoded: Mapping[str, EncodedObject], tied: TiedNames
) -> frozenset[str]:
    keys: set[str] = set()
    alike: set[int] = set()
    for name, value in objects.items():
        wrapped = model_state.find_ddp_wrapper(value)
        if wrapped is None or getattr(wrapped, "parameters_to_ignore", None):
            continue
        parameters = dict(wrapped.module.named_parameters(remove_duplicate=False))
        alike |= {id(parameter) for parameter in parameters.values()}
        bare = map(model_state.strip_wrapper_names, parameters)
        aliases = model_state.map_tied_names(value, tied)
        keys |= {f"{name}/{aliases.get(key, key)}" for key in bare}
    for name, value in objects.items():
        if isinstance(value, Optimizer) and encoded[name].by_name:
            parameters_alike = {
                id(parameter) for parameter in model_state.list_optimizer_parameters(value)
            } <= alike
            keys |= encoded[name].tensors.keys() if parameters_alike else set()
    return frozenset(keys)


def _find_tensor_ranks(tensor: torch.Tensor) -> set[int]:
    return set(tensor.device_mesh.mesh.flatten().tolist()) if isinstance(tensor, DTensor) else set()


def _format_shape_and_type(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def _describe_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    return "\n".join(f"{key} {_format_shape_and_type(one)}" for key, one in sorted(tensors.items()))


def generators_path_of_rank(rank: int) -> str:
    """Return the path of the generators of a rank."""
    return f"rng/{rank:05d}"


def find_skeleton_keys(path: str, keys: Mapping[str, Any]) -> list[str]:
    """Return the keys of the skeletons of an object: of the parts that begin with each rank."""
    before = path + SKELETON
    found = [key.removeprefix(before) for key in keys if key.startswith(before)]
    return [before + rank for rank in sorted(found, key=lambda rank: int(rank or 0))]
