"""The state of optimizers by the names of parameters, and the way back to torch's numbers.

torch numbers parameters in the order of their groups, so that a number means another parameter
wherever a rank holds another part of the model. A parameter of no registered model keeps its
number: it has to be alike on every rank, and agreement.py makes sure of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from hpckit.runtime.checkpoint.encoding import StateEncoder
from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.model_state import ParameterNames
from hpckit.values import dataclass

_NUMBER = "."
"""What begins a parameter's number; no name of a parameter begins with it."""

_OF_THE_RANK = frozenset({"params", "param_names"})
"""Entries of a group that say which parameters it has here; they are not hyperparameters."""


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all groups, in torch's order."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def is_by_parameter(optimizer: Optimizer, state: Any) -> bool:
    """Return whether a state has torch's form: numbers for parameters, in groups.

    An optimizer with a form of its own is kept as it is, like any other object.
    """
    if not isinstance(state, dict) or not {"state", "param_groups"} <= state.keys():
        return False
    groups = [len(group["params"]) for group in optimizer.param_groups]
    return isinstance(state["state"], dict) and groups == [
        len(group.get("params", ())) for group in state["param_groups"]
    ]


def stored_names(optimizer: Optimizer, names: ParameterNames) -> list[str]:
    """Return the name that each parameter of an optimizer is stored under, in torch's order."""
    found = [names.of(parameter) for parameter in parameters_of(optimizer)]
    return [name or f"{_NUMBER}{number}" for number, name in enumerate(found)]


def is_number(stored: str) -> bool:
    """Return whether a parameter is stored under a number, as it is of no registered model."""
    return stored.startswith(_NUMBER)


def encode_optimizer(
    encoder: StateEncoder,
    path: str,
    optimizer: Optimizer,
    state: Mapping[str, Any],
    names: ParameterNames,
) -> Any:
    """Encode the state of an optimizer by the names of its parameters; return its skeleton."""
    stored = iter(stored_names(optimizer, names))
    groups = []
    by_number: dict[int, str] = {}
    for group in state["param_groups"]:
        here = {number: next(stored) for number in group["params"]}
        by_number |= here
        groups.append({"params": list(here.values()), "options": own_options(group)})
    present = set(by_number.values())
    parts = {
        "state": {by_number[key]: one for key, one in state["state"].items() if key in by_number},
        "others": {key: one for key, one in state["state"].items() if key not in by_number},
        "groups": groups,
        "tied": {name: first for name, first in names.tied.items() if first in present},
        "more": {key: one for key, one in state.items() if key not in {"state", "param_groups"}},
    }
    return encoder.encode(path, parts)


def own_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a group."""
    return {key: one for key, one in group.items() if key not in _OF_THE_RANK}


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """A saved group of parameters: their names, and its encoded options, such as `lr`."""

    names: frozenset[str]
    options: Any


def group_options(
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
                hint="give the optimizer the groups that it had",
            )
        yield found[0] if found else None


def is_saved_by_name(skeleton: Any) -> bool:
    """Return whether an encoded state is one of `encode_optimizer`."""
    pairs = skeleton.get("dict", ()) if isinstance(skeleton, dict) else ()
    return [key for key, _ in pairs] == ["state", "others", "groups", "tied", "more"]
