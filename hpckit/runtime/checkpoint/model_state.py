"""Names and tensors of registered models, whatever they are wrapped in, and the way back.

Names are those of the model itself: without the marks of DistributedDataParallel, torch.compile and
activation checkpoints. So a state fits the same model in any wrapping and on any number of ranks.

The state of optimizers goes by these names, too. torch numbers parameters in the order of their groups, so
that a number means another parameter wherever a rank holds another part of the model. A parameter of no
registered model keeps its number: it has to be alike on every rank, and group.py makes sure of that.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hpckit.runtime.checkpoint.encoding import StateEncoder
from hpckit.runtime.checkpoint.errors import StateError
from hpckit.values import dataclass, field

TiedNames = Mapping[nn.Module, Mapping[str, str]]
"""By model: leads from the name of a tied parameter to the name that it is stored under."""

_AVERAGED = (DistributedDataParallel, FullyShardedDataParallel)
_MARKS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def strip_wrapper_names(name: str) -> str:
    """Return a parameter's name without the marks of wrappers.

    Example: `blocks.0._orig_mod.weight` is `blocks.0.weight`.
    """
    for mark in _MARKS:
        name = name.replace(mark, "")
    return name


def unwrap_module(module: nn.Module) -> nn.Module:
    """Return the module inside DDP and torch.compile."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, DistributedDataParallel | nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def find_ddp_wrapper(value: Any) -> DistributedDataParallel | None:
    """Return the DDP module that a registered object is, or that torch.compile has wrapped."""
    while isinstance(value, nn.Module):
        if isinstance(value, DistributedDataParallel):
            return value
        value = getattr(value, "_orig_mod", None)
    return None


def map_tied_names(model: nn.Module, tied: TiedNames) -> dict[str, str]:
    """Return the tied names of a model, also where it is a part of a registered one."""
    known = {id(unwrap_module(one)): names for one, names in tied.items()}
    found: dict[str, str] = {}
    for place, module in unwrap_module(model).named_modules():
        before = strip_wrapper_names(f"{place}.") if place else ""
        names = known.get(id(module), {})
        found |= {before + name: before + first for name, first in names.items()}
    return found


def live_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return a model's state by bare names; parameters and buffers are the live ones.

    So a tensor under two names is the same object under both. A model with a `state_dict` of its
    own that cannot hand out live ones (`keep_vars`) gives what it gives.
    """
    module = unwrap_module(model)
    live = _supports_keep_vars(module)
    state = module.state_dict(keep_vars=True) if live else module.state_dict()
    return {strip_wrapper_names(name): one for name, one in state.items()}


def _supports_keep_vars(module: nn.Module) -> bool:
    wanted = inspect.signature(module.state_dict).parameters.values()
    return any(
        parameter.name == "keep_vars" or parameter.kind is parameter.VAR_KEYWORD for parameter in wanted
    )


def load_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state by bare names into a model; raises what its `load_state_dict` raises."""
    module = unwrap_module(model)
    live = module.state_dict()
    names = {strip_wrapper_names(name): name for name in live}
    renamed = OrderedDict((names.get(name, name), one) for name, one in state.items())
    renamed._metadata = getattr(live, "_metadata", {})  # type: ignore[attr-defined]  # noqa: SLF001  # torch reads it
    module.load_state_dict(renamed)


def encode_model_state(encoder: StateEncoder, path: str, model: nn.Module, aliases: Mapping[str, str]) -> Any:
    """Encode a model's state; return its skeleton. Raises StateError.

    A tied tensor is stored once: under the name that `aliases` gives, or else its first name.
    """
    live = live_state_dict(model)
    for name, first in aliases.items():
        if name in live and first in live and live[name] is not live[first]:
            raise StateError(
                f"{name} and {first} of {path} are tied by the plan, but are two parameters here",
                hint="assign one to the other again after the line that replaced it, or leave the pair "
                "out of Plan(tied=...)",
            )
    pairs = {name: encoder.encode(f"{path}/{aliases.get(name, name)}", live[name]) for name in live}
    return {"dict": [[name, one] for name, one in pairs.items()]}


def digest_model_copies(objects: Mapping[str, Any]) -> dict[str, int]:
    """Return a number of the bits of each model whose parameters every rank has for itself.

    Models that DDP or FSDP wraps, or that have DTensors, are left out. Equal bits have equal numbers.
    """
    return {
        name: sum(map(_digest_bits, one.parameters()))
        for name, one in objects.items()
        if isinstance(one, nn.Module)
        and not any(isinstance(part, _AVERAGED) for part in one.modules())
        and all(map(_is_plain_tensor, one.parameters()))
    }


def explain_differing_model_copies(everyone: Sequence[Mapping[str, int]]) -> str:
    """Return which model differs between ranks, by `digest_model_copies`; empty if none."""
    for rank, other in enumerate(everyone):
        for name, digest in everyone[0].items():
            if other.get(name, digest) != digest:
                return (
                    f"{name} has other parameters on rank {rank} than on rank 0, which is saved: "
                    "nothing averages its gradients. Build it by run.parallelize(build), or wrap "
                    "it in DistributedDataParallel"
                )
    return ""


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    strided = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
    return strided and not isinstance(tensor, DTensor) and not is_lazy(tensor)


def _digest_bits(tensor: torch.Tensor) -> int:
    """Return the sum of a tensor's bytes, by their places in a number: exact in any order."""
    flat = tensor.detach().contiguous().view(-1)
    flat = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(flat.view(kinds[flat.itemsize]).sum(dtype=torch.int64))


@dataclass(slots=True)
class ParameterNames:
    """The names of the parameters of all registered models, by the parameter itself.

    With one model they are its bare names; with several, `<model>/<bare name>`. `tied` leads from
    the other names of a tied parameter to its first one.
    """

    tied: dict[str, str] = field(default_factory=dict)
    _names: dict[int, list[str]] = field(default_factory=dict)

    def first_name(self, parameter: torch.Tensor) -> str | None:
        """Return the first name of a parameter; None if it is of no registered model."""
        names = self.all_names(parameter)
        return names[0] if names else None

    def all_names(self, parameter: torch.Tensor) -> list[str]:
        """Return all names of a parameter, the first one that it is stored under."""
        return self._names.get(id(parameter), [])

    def add_name(self, name: str, parameter: torch.Tensor, first: str) -> None:
        """Add a name of a parameter, and what it is stored under as far as a plan says."""
        names = self._names.setdefault(id(parameter), [])
        names += [alias for alias in (first, name) if alias not in names]
        self.tied |= dict.fromkeys(names[1:], names[0])


def name_parameters(objects: Mapping[str, Any], tied: TiedNames) -> ParameterNames:
    """Return the names of the parameters of all models among the registered objects."""
    models = {name: one for name, one in objects.items() if isinstance(one, nn.Module)}
    found = ParameterNames()
    for prefix, model in models.items():
        before = f"{prefix}/" if len(models) > 1 else ""
        aliases = map_tied_names(model, tied)
        for name, parameter in _list_named_parameters(model):
            found.add_name(before + name, parameter, before + aliases.get(name, name))
    return found


def _list_named_parameters(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, one in live_state_dict(model).items():
        if isinstance(one, nn.Parameter):
            yield name, one
    for name, one in unwrap_module(model).named_parameters(remove_duplicate=False):
        yield strip_wrapper_names(name), one


def list_names_of_tied_tensor(
    live: Mapping[str, Any], aliases: Mapping[str, str], name: str
) -> Iterator[str]:
    """Yield the other names that a tensor of a model may be stored under, if it is tied."""
    first = aliases.get(name, name)
    known = (first, *(alias for alias, one in aliases.items() if one == first))
    yield from (alias for alias in known if alias != name)
    if isinstance(live[name], torch.Tensor):
        yield from (one for one, value in live.items() if value is live[name] and one != name)


_NUMBER = "."
"""What begins a parameter's number; no name of a parameter begins with it."""

_OF_THE_RANK = frozenset({"params", "param_names"})
"""Entries of a group that say which parameters it has here; they are not hyperparameters."""


def list_optimizer_parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all groups, in torch's order."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def is_torch_optimizer_state(optimizer: Optimizer, state: Any) -> bool:
    """Return whether a state has torch's form: numbers for parameters, in groups.

    An optimizer with a form of its own is kept as it is, like any other object.
    """
    if not isinstance(state, dict) or not {"state", "param_groups"} <= state.keys():
        return False
    groups = [len(group["params"]) for group in optimizer.param_groups]
    return isinstance(state["state"], dict) and groups == [
        len(group.get("params", ())) for group in state["param_groups"]
    ]


def list_stored_names(optimizer: Optimizer, names: ParameterNames) -> list[str]:
    """Return the name that each parameter of an optimizer is stored under, in torch's order."""
    found = [names.first_name(parameter) for parameter in list_optimizer_parameters(optimizer)]
    return [name or f"{_NUMBER}{number}" for number, name in enumerate(found)]


def is_stored_by_number(stored: str) -> bool:
    """Return whether a parameter is stored under a number, as it is of no registered model."""
    return stored.startswith(_NUMBER)


def encode_optimizer_state(
    encoder: StateEncoder, path: str, optimizer: Optimizer, state: Mapping[str, Any], names: ParameterNames
) -> Any:
    """Encode the state of an optimizer by the names of its parameters; return its skeleton."""
    stored = iter(list_stored_names(optimizer, names))
    groups = []
    by_number: dict[int, str] = {}
    for group in state["param_groups"]:
        here = {number: next(stored) for number in group["params"]}
        by_number |= here
        groups.append({"params": list(here.values()), "options": extract_hyperparameters(group)})
    present = set(by_number.values())
    parts = {
        "state": {by_number[key]: one for key, one in state["state"].items() if key in by_number},
        "others": {key: one for key, one in state["state"].items() if key not in by_number},
        "groups": groups,
        "tied": {name: first for name, first in names.tied.items() if first in present},
        "more": {key: one for key, one in state.items() if key not in {"state", "param_groups"}},
    }
    return encoder.encode(path, parts)


def extract_hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a group."""
    return {key: one for key, one in group.items() if key not in _OF_THE_RANK}


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """A saved group of parameters: their names, and its encoded options, such as `lr`."""

    names: frozenset[str]
    options: Any


def match_saved_options(
    path: str, optimizer: Optimizer, names: Sequence[str], groups: Sequence[SavedGroup]
) -> Iterator[Any]:
    """Yield the encoded options of each group of an optimizer; None where none were saved.

    `names` are the saved names of its parameters, in torch's order. A group has the options that
    its parameters had; one without parameters those of the group at its place. Raises StateError if
    its parameters had different ones.
    """
    rest = iter(names)
    for place, group in enumerate(optimizer.param_groups):
        here = [next(rest) for _ in group["params"]]
        found = [next(group.options for group in groups if name in group.names) for name in here]
        if not here and place < len(groups):
            found = [groups[place].options]
        unlike = next((i for i, one in enumerate(found) if one != found[0]), None)
        if unlike is not None:
            raise StateError(
                f"group {place} of {path} holds {here[0]} and {here[unlike]}, which were saved in "
                "groups with different options",
                hint="give the optimizer the same groups as when it was saved",
            )
        yield found[0] if found else None


def is_optimizer_saved_by_name(skeleton: Any) -> bool:
    """Return whether an encoded state is one of `encode_optimizer_state`."""
    pairs = skeleton.get("dict", ()) if isinstance(skeleton, dict) else ()
    return [key for key, _ in pairs] == ["state", "others", "groups", "tied", "more"]
