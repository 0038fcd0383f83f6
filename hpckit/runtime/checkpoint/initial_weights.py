"""Begins a run with the weights of another model's file, in any layout.

A model has them as soon as hpckit knows it, before the user's code can copy it: an average, a
reference, an optimizer's own copies. The file is read in place, by every rank its own part of it.
Making a checkpoint of the file first would write the model twice, and would have to invent what a
file of weights lacks: a step, samples, an optimizer, generators, and a layout.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from hpckit.model.counted import format_count, format_short_list
from hpckit.model.launch import Checkpoint
from hpckit.patterns import lazy_pattern
from hpckit.runtime.checkpoint import model_state
from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.group import Group, find_main_problem
from hpckit.runtime.checkpoint.readers import make_tensor_like_live
from hpckit.runtime.checkpoint.weights_file import memory_map_weights
from hpckit.runtime.tensor_parts import local_shard_of_tensor, slice_tensor_like_shard
from hpckit.values import dataclass, field

_SHOWN = 3
_OF_DDP = "module."
"""What the names of a file begin with that was made of a model in DistributedDataParallel."""
_WRAPPED = lazy_pattern(r"^(module\.)+")
_UPDATES = "n_averaged"
"""What an average has besides its model; a file of weights has that alone."""
_TIMEOUT = timedelta(days=1)
"""A file system may hang for longer than a step may: as for checkpoints."""
_COMPARED_FIRST = 16
"""Numbers that tell nearly all other tensors of a shape apart."""


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

    def describe_left_out(self) -> str:
        """Return what was not loaded, in words; empty if all was."""
        facts = (
            (self.missing, "not in the file"),
            (self.unexpected, "not in the model"),
            (self.unlike, "of another shape or kind of number"),
        )
        return "; ".join(f"{format_short_list(names, _SHOWN)}: {what}" for names, what in facts if names)


def load_weights(
    weights: InitialWeights, objects: Mapping[str, Any], tied: model_state.TiedNames, group: Group
) -> LoadedWeights:
    """Load a file of weights into the models among the objects; collective.

    Names are those of the model's state, as an export has them; with several models they begin with the
    model's name. Numbers are converted to the model's types. Nothing is loaded if anything raises.

    Raises StateError if names, shapes or kinds of number do not fit, no name does, or the file has
    two tensors for names that are tied; CheckpointError if the file cannot be read.
    """
    models = {name: one for name, one in objects.items() if isinstance(one, nn.Module)}
    if not models:
        raise StateError(
            f"checkpoint.weights={weights.path} is set, but no model is registered",
            hint="register the model: run.state(model=…)",
        )
    named = {f"{name}." if len(models) > 1 else "": one for name, one in models.items()}
    loading = _Loading(weights.path, named, tied, group)
    found = loading.match_with_models()
    if not found.tensors and len(models) > 1:  # it may be a file of one of them, with its own names
        alone = [
            _Loading(weights.path, {"": model}, tied, group).match_with_models() for model in models.values()
        ]
        found = max((found, *alone), key=lambda one: one.tensors if one.describe_left_out() else 0)
    if found.describe_left_out() and (weights.strict or not found.tensors):
        raise _unfit_weights_error(weights, found)
    loading.load_into_models()
    return found


@dataclass(slots=True, kw_only=True)
class FirstWeights:
    """The file of weights, loaded into each model as soon as the user's code has it.

    Does so in restarts, too: what the code copies from a model (a reference, an average) is not in
    a checkpoint, or is compared with what was. `loaded` tells of the first model whose file it is.
    """

    weights: InitialWeights
    loaded: LoadedWeights | None = None
    _known: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet)

    def load_into_model(self, model: nn.Module, name: str | None, tied: model_state.TiedNames) -> None:
        """Load the file into a model if it is the model's; collective.

        `name` is that under which it is registered, None before that. If names differ, or the file
        is gone, nothing is done: `load_weights` tells when the loop begins without a checkpoint.
        """
        if model in self._known:
            return
        group = Group(_TIMEOUT)
        try:
            if group.call_on_first_rank(self.weights.path.exists).value:
                self._load_into_model(model, name, tied, group)
        finally:
            group.close()

    def is_loaded_into(self, models: Iterable[nn.Module]) -> bool:
        """Return whether all these models have been given the file."""
        return self.loaded is not None and all(model in self._known for model in models)

    def _load_into_model(
        self, model: nn.Module, name: str | None, tied: model_state.TiedNames, group: Group
    ) -> None:
        loading = _Loading(self.weights.path, {"": model}, tied, group)
        found = loading.match_with_models()
        if not found.describe_left_out() or (found.tensors and not self.weights.strict):
            loading.load_into_models()
            self._known.add(model)
            self.loaded = self.loaded or found
        elif name is not None:
            loading = _Loading(self.weights.path, {f"{name}.": model}, tied, group)
            part = loading.match_with_models()
            if part.tensors and not (part.missing or part.unlike):
                loading.load_into_models()


def make_initial_weights_loader(configured: Checkpoint) -> FirstWeights:
    """Return what gives models the file that a configuration names."""
    path = Path(str(configured.weights)).expanduser()
    return FirstWeights(weights=InitialWeights(path=path, strict=configured.weights_strict))


@dataclass(slots=True)
class _Loading:
    """The stages of loading; every rank ends one before any begins the next.

    `models` are by what the file has before their names, `parts` what is in the file for each.
    """

    path: Path
    models: Mapping[str, nn.Module]
    tied: model_state.TiedNames
    group: Group
    parts: list[_ModelPart] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def match_with_models(self) -> LoadedWeights:
        """Map the file, and return what in it fits the models on all ranks; collective."""
        self._run_stage_on_every_rank(self._match_own_models)
        group, names = self.group, sorted(self.tensors)
        used = {one for part in self.parts for one in part.used}
        claimed = group.any_over_ranks([name in used for name in names])
        missing = group.gather([name for part in self.parts for name in part.missing])
        unlike = group.gather([name for part in self.parts for name in part.unlike])
        chosen = {one for part in self.parts for one in part.chosen.values()}
        return LoadedWeights(
            path=self.path,
            tensors=sum(group.any_over_ranks([name in chosen for name in names])),
            missing=_merge_names_of_ranks(missing),
            unexpected=tuple(n for n, one in zip(names, claimed, strict=True) if not one),
            unlike=_merge_names_of_ranks(unlike),
        )

    def load_into_models(self) -> None:
        """Load what fits into the models; collective. Raises StateError if there are copies."""
        self._run_stage_on_every_rank(self._read_tensors_of_models)
        self._run_stage_on_every_rank(self._load_tensors_into_models)

    def _run_stage_on_every_rank(self, stage: Callable[[], None]) -> None:
        problem = find_main_problem(self.group.call_on_every_rank(stage))
        if problem is not None:
            raise problem.to_error(f"loading the weights of {self.path}")

    def _match_own_models(self) -> None:
        self.tensors = memory_map_weights(self.path)
        for before, model in self.models.items():
            part = _ModelPart(model, before)
            part.match_tensors(self.tensors, model_state.map_tied_names(model, self.tied))
            self.parts.append(part)

    def _read_tensors_of_models(self) -> None:
        for part in self.parts:
            part.read_own_tensor_shards(self.tensors)
        changes = [change for part in self.parts for change in part.list_changes()]
        copied = _find_tensor_copied_elsewhere(changes)
        if copied is not None:
            raise StateError(
                f"checkpoint.weights={self.path}: a copy of the model's {copied} was made before "
                "its weights were loaded, and would keep the random ones",
                hint="copy a model (averages, reference models, optimizers that keep weights of "
                "their own) after run.parallelize(), or else after run.state(model=…)",
            )

    def _load_tensors_into_models(self) -> None:
        for part in self.parts:
            part.load_into_model()


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

    def match_tensors(self, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
        """Find each tensor of the model in the file, by its name or that of a tied one."""
        self._live = model_state.live_state_dict(self.model)
        by_bare = {model_state.strip_wrapper_names(name): name for name in tensors}
        if all(name.startswith(_OF_DDP) for name in by_bare) and not any(
            name.startswith(_OF_DDP) for name in self._live
        ):
            by_bare = {one.removeprefix(_OF_DDP): name for one, name in by_bare.items()}
        is_average = isinstance(self.model, AveragedModel)
        for name, live in self._live.items():
            if is_average and name == _UPDATES and self.before + name not in by_bare:
                continue  # it begins at 0
            others = model_state.list_names_of_tied_tensor(self._live, aliases, name)
            names = [name, *others]
            if is_average:
                names += [_WRAPPED.sub("", name) for name in names]
            known = [by_bare.get(self.before + name) for name in names]
            found = next((tensor for tensor in known if tensor is not None), None)
            here = {tensor for tensor in known if tensor is not None}
            _refuse_unlike_tied_tensors(sorted(here), tensors)
            self.used |= here
            if not isinstance(live, torch.Tensor):
                continue
            if found is None:
                self.missing.append(self.before + name)
            elif tensors[found].shape != live.shape:
                shapes = f"{tuple(tensors[found].shape)}, not {tuple(live.shape)}"
                self.unlike.append(f"{self.before}{name} ({shapes})")
            elif _dtype_generality_order(tensors[found].dtype) > _dtype_generality_order(live.dtype):
                kinds = f"{_format_dtype(tensors[found].dtype)}, not {_format_dtype(live.dtype)}"
                self.unlike.append(f"{self.before}{name} ({kinds})")
            else:
                self.chosen[name] = found

    def read_own_tensor_shards(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy what this rank has of each tensor in the file, sharded like the model's."""
        saved = {key: (one.shape, one.dtype) for key, one in tensors.items()}
        for name, found in self.chosen.items():
            made = self._read[found] = make_tensor_like_live(saved, found, self._live[name])
            local_shard_of_tensor(made).copy_(slice_tensor_like_shard(tensors[found], made))

    def list_changes(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yield the names of what was read, what this rank has under them, and what it will."""
        for name, found in self.chosen.items():
            live = self._live[name]
            yield self.before + name, local_shard_of_tensor(live), local_shard_of_tensor(self._read[found])

    def load_into_model(self) -> None:
        """Load what was read; what was not in the file stays as it is."""
        state = dict(self._live)
        state |= {name: self._read[found] for name, found in self.chosen.items()}
        model_state.load_model_state(self.model, state)


def _find_tensor_copied_elsewhere(changes: Iterable[tuple[str, torch.Tensor, torch.Tensor]]) -> str | None:
    """Return the name of a tensor that is about to change, and of which there is a copy elsewhere.

    Looks at all tensors of this process. A tensor that has one number only tells nothing.
    """
    changing = [(name, live) for name, live, read in changes if _is_distinctive_change(live, read)]
    own = {live.untyped_storage().data_ptr() for _, live in changing}
    shapes = {live.shape for _, live in changing}
    others = [
        held
        for held in gc.get_objects()
        if type(held) in {torch.Tensor, nn.Parameter}
        and held.shape in shapes
        and _has_allocated_memory(held)
        and held.untyped_storage().data_ptr() not in own
    ]
    for name, live in changing:
        if any(_is_copy(other, live) for other in others if other.shape == live.shape):
            return name
    return None


@torch.no_grad()
def _is_distinctive_change(live: torch.Tensor, read: torch.Tensor) -> bool:
    if live.numel() <= 1 or not _has_allocated_memory(live) or bool((live == live.flatten()[0]).all()):
        return False
    return not torch.equal(live.to(read.device), read)


@torch.no_grad()
def _is_copy(other: torch.Tensor, live: torch.Tensor) -> bool:
    first = other.flatten()[:_COMPARED_FIRST].to(live.device)
    if not torch.equal(first, live.flatten()[:_COMPARED_FIRST].to(other.dtype)):
        return False
    return torch.equal(other.to(live.device), live.to(other.dtype))


def _has_allocated_memory(tensor: torch.Tensor) -> bool:
    """Return whether a plain tensor has its memory: FSDP frees what it has gathered."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def _refuse_unlike_tied_tensors(names: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> None:
    for name in names[1:]:
        first, other = tensors[names[0]], tensors[name]
        if first.shape == other.shape:
            both_nan = (first != first) & (other != other)  # noqa: PLR0124
            if ((first == other) | both_nan).all():
                continue
        raise StateError(
            f"{names[0]} and {name} are one parameter in the model, but two different tensors in the file",
            hint="untie them in the model and in the plan, or take one out of the file",
        )


def _dtype_generality_order(dtype: torch.dtype) -> int:
    """Return a number that is higher for types whose numbers others cannot hold."""
    return 2 if dtype.is_complex else int(dtype.is_floating_point)


def _format_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _merge_names_of_ranks(everyone: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for names in everyone for name in names}))


def _unfit_weights_error(weights: InitialWeights, found: LoadedWeights) -> StateError:
    lost = "" if found.tensors else "none of its tensors fits the model; "
    hint = "checkpoint.weights_strict=false loads what fits, and leaves the rest as it is built"
    return StateError(
        f"{weights.path} does not match the model: {lost}{found.describe_left_out()} "
        f"({format_count(found.tensors, 'tensor')} would fit)",
        hint=hint if found.tensors else "compare the names with those of model.state_dict()",
    )
