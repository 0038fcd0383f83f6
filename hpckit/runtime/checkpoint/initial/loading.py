"""Begins a run with the weights of another model's file, in any layout.

The file is read in place, by every rank its own part of it. Making a checkpoint of the file first
would write the model twice, and would have to invent what a file of weights lacks: a step, samples,
an optimizer, generators, and a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpckit.model.counted import counted
from hpckit.runtime.checkpoint import model_state
from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.group import Group, first_problem
from hpckit.runtime.checkpoint.initial.mapped_storage import copy_parts
from hpckit.runtime.checkpoint.initial.weights_file import map_weights
from hpckit.runtime.checkpoint.readers import empty_like_live

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialWeights:
    """The file that a run begins with. `strict`: its names and shapes are those of the models."""

    path: Path
    strict: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """What was loaded of a file of weights, on all ranks together.

    `missing` are names of the models that the file lacks, `unexpected` names that only the file
    has, and `unlike` names whose shapes or kinds of number differ; none of them was loaded.
    """

    path: Path
    tensors: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()

    def left_out(self) -> str:
        """Return what was not loaded, in words; empty if all was."""
        facts = (
            (self.missing, "not in the file"),
            (self.unexpected, "not in the model"),
            (self.unlike, "of another shape or kind of number"),
        )
        return "; ".join(f"{_listed(names)}: {what}" for names, what in facts if names)


def load_weights(
    weights: InitialWeights,
    objects: Mapping[str, Any],
    tied: model_state.TiedNames,
    group: Group,
) -> LoadedWeights:
    """Load a file of weights into the models among the objects; collective.

    Names are those of the model's state, as an export has them; with several models they begin with
    the model's name. Numbers are converted to the model's types. Nothing is loaded if anything
    raises.

    Raises StateError if names, shapes or kinds of number do not fit, no name does, or the file has
    two tensors for names that are tied; CheckpointError if the file cannot be read.
    """
    models = {name: one for name, one in objects.items() if isinstance(one, nn.Module)}
    if not models:
        raise StateError(
            f"checkpoint.weights={weights.path}, and no model is registered",
            hint="register the model: run.state(model=…)",
        )
    loading = _Loading(weights.path, models, tied)
    doing = f"loading the weights of {weights.path}"
    _on_each(group, loading.fit, doing)
    found = loading.judged(group)
    if found.left_out() and (weights.strict or not found.tensors):
        raise _unfit(weights, found)
    _on_each(group, loading.read, doing)
    _on_each(group, loading.give, doing)
    return found


def _on_each(group: Group, stage: Callable[[], None], doing: str) -> None:
    problem = first_problem(group.each(stage))
    if problem is not None:
        raise problem.error(doing)


@dataclass(slots=True)
class _Loading:
    """The stages of loading on one rank; every rank ends one before any begins the next.

    `parts` are the models with what is in the file for each.
    """

    path: Path
    models: Mapping[str, nn.Module]
    tied: model_state.TiedNames
    parts: list[_ModelPart] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def fit(self) -> None:
        """Map the file, and find the names of each model in it."""
        self.tensors = map_weights(self.path)
        for name, model in self.models.items():
            before = f"{name}." if len(self.models) > 1 else ""
            part = _ModelPart(model, before)
            part.fit(self.tensors, model_state.aliases_of(model, self.tied))
            self.parts.append(part)

    def judged(self, group: Group) -> LoadedWeights:
        """Return what fits on all ranks; collective."""
        names = sorted(self.tensors)
        used = {one for part in self.parts for one in part.used}
        claimed = group.any_of([name in used for name in names])
        missing = group.gather([name for part in self.parts for name in part.missing])
        unlike = group.gather([name for part in self.parts for name in part.unlike])
        chosen = {one for part in self.parts for one in part.chosen.values()}
        return LoadedWeights(
            path=self.path,
            tensors=sum(group.any_of([name in chosen for name in names])),
            missing=_joined(missing),
            unexpected=tuple(n for n, one in zip(names, claimed, strict=True) if not one),
            unlike=_joined(unlike),
        )

    def read(self) -> None:
        """Read this rank's part into tensors of its own."""
        for part in self.parts:
            copy_parts(self.tensors, part.wanted(self.tensors))

    def give(self) -> None:
        """Load what was read into the models."""
        for part in self.parts:
            part.give()


@dataclass(slots=True)
class _ModelPart:
    """What one model takes of the file on this rank.

    `before` is what the file's names have before the model's. `chosen` leads from the model's names
    to the file's; `used` are names of the file that the model has.
    """

    model: nn.Module
    before: str
    chosen: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    _live: dict[str, Any] = field(default_factory=dict)
    _read: dict[str, torch.Tensor] = field(default_factory=dict)

    def fit(self, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
        """Find each tensor of the model in the file, by its name or that of a tied one."""
        by_bare = {model_state.bare_name(name): name for name in tensors}
        self._live = model_state.live_state(self.model)
        for name, live in self._live.items():
            others = model_state.other_names(self._live, aliases, name)
            known = [by_bare.get(self.before + one) for one in (name, *others)]
            found = next((one for one in known if one is not None), None)
            here = {one for one in known if one is not None}
            _refuse_two(sorted(here), tensors)
            self.used |= here
            if not isinstance(live, torch.Tensor):
                continue
            if found is None:
                self.missing.append(self.before + name)
            elif tensors[found].shape != live.shape:
                shapes = f"{tuple(tensors[found].shape)}, not {tuple(live.shape)}"
                self.unlike.append(f"{self.before}{name} ({shapes})")
            elif _kind(tensors[found].dtype) > _kind(live.dtype):
                kinds = f"{_named(tensors[found].dtype)}, not {_named(live.dtype)}"
                self.unlike.append(f"{self.before}{name} ({kinds})")
            else:
                self.chosen[name] = found

    def wanted(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return an empty tensor for each name in the file, sharded like the model's."""
        saved = {key: (one.shape, one.dtype) for key, one in tensors.items()}
        self._read = {
            found: empty_like_live(saved, found, self._live[name])
            for name, found in self.chosen.items()
        }
        return self._read

    def give(self) -> None:
        """Load what was read; what was not in the file stays as it is."""
        state = dict(self._live)
        state |= {name: self._read[found] for name, found in self.chosen.items()}
        model_state.load_model(self.model, state)


def _refuse_two(names: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise StateError if a file has different tensors under the names of a tied one."""
    for name in names[1:]:
        first, other = tensors[names[0]], tensors[name]
        if not first.shape == other.shape or not _are_equal(first, other):
            raise StateError(
                f"{names[0]} and {name} are one parameter in the model, and two different tensors "
                "in the file",
                hint="untie them in the model and in the plan, or take one out of the file",
            )


def _are_equal(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one shape have the same numbers; NaN is one, too."""
    return bool(((first == other) | ((first != first) & (other != other))).all())  # noqa: PLR0124


def _kind(dtype: torch.dtype) -> int:
    """Return a number that is higher for types whose numbers others cannot hold."""
    return 2 if dtype.is_complex else int(dtype.is_floating_point)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _joined(everyone: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for names in everyone for name in names}))


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _unfit(weights: InitialWeights, found: LoadedWeights) -> StateError:
    lost = "" if found.tensors else "no tensor of it fits the model; "
    hint = "checkpoint.weights_strict=false loads what fits, and leaves the rest as it is built"
    return StateError(
        f"{weights.path} has other weights than the model: {lost}{found.left_out()} "
        f"({counted(found.tensors, 'tensor')} would fit)",
        hint=hint if found.tensors else "compare the names with those of model.state_dict()",
    )
