"""Checks what is registered and what is not, and counts the parameters that this rank holds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from hpckit.errors import UsageError
from hpckit.model import messages
from hpckit.model.parallel.layout import Layout
from hpckit.runtime.tensor_parts import local_shard_of_tensor

_TRAINERS = (Optimizer, LRScheduler)
_SAVING_NO_OTHERS = frozenset({"torch", "torchdata", "torchmetrics"})
"""Packages whose `state_dict` holds no optimizer or scheduler but its own."""


def build_layout_message(
    rank: int, layout: Layout, registered: Iterable[Any], tied: Iterable[tuple[str, str]] = ()
) -> messages.LayoutTold:
    """Return what a rank reports of its layout, and of its parameters: numbers of elements.

    `registered` may hold anything; its modules count, and each parameter once. Of a DTensor the
    local shard is held. `tied` are pairs of names: where a pipeline has the first one on another
    stage, the second one is a copy of it, which is no further part of the model.
    """
    modules = list(registered)
    found = list(list_unique_parameters(modules))
    copies = _find_tied_copies(modules, tied)
    return messages.LayoutTold(
        round=0,
        rank=rank,
        layout=layout,
        held=sum(local_shard_of_tensor(tensor).numel() for tensor in found),
        whole=sum(tensor.numel() for tensor in found if id(tensor) not in copies),
    )


def _find_tied_copies(registered: Iterable[Any], tied: Iterable[tuple[str, str]]) -> set[int]:
    pairs, found = tuple(tied), set[int]()
    for value in registered:
        if pairs and isinstance(value, torch.nn.Module):
            own = {_strip_wrapper_names(name): one for name, one in value.named_parameters()}
            found |= {id(own[two]) for one, two in pairs if two in own and one not in own}
    return found


def has_sharded_parameters(value: Any) -> bool:
    """Return whether this is a module of which some parameter is a DTensor."""
    return isinstance(value, torch.nn.Module) and any(
        hasattr(parameter, "to_local") for parameter in value.parameters()
    )


def list_unique_parameters(registered: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield each parameter once; one that has no shape yet has no elements either."""
    seen: set[int] = set()
    for value in registered:
        if not isinstance(value, torch.nn.Module):
            continue
        for parameter in value.parameters():
            if id(parameter) not in seen and not is_lazy(parameter):
                seen.add(id(parameter))
                yield parameter


def _strip_wrapper_names(name: str) -> str:
    return name.replace("_orig_mod.", "").removeprefix("module.")


def check_state_object(name: str, value: Any, world_size: int) -> None:
    """Raise TypeError or UsageError for what cannot be kept whole in checkpoints.

    They keep one state for all ranks, and that of a data loader fits its number of ranks only. The
    model within an `AveragedModel` is half of it: after a restart torch would take the number of
    updates for 0, and the next one would replace the average.
    """
    kind = type(value).__name__
    if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
        raise TypeError(
            f"run.state({name}=…) got a {kind} without state_dict and load_state_dict; wrap it in "
            "a class that has both"
        )
    if world_size > 1 and isinstance(value, DataLoader):
        raise UsageError(
            f"run.state({name}=…) got a {kind} on {world_size} ranks: its position is each rank's "
            "own, and checkpoints keep one state for all ranks",
            hint="run.batches(dataset, batch_size=…) takes its position from the step, with any "
            "number of ranks; on a single rank a stateful loader can be registered",
        )
    if isinstance(value, nn.Module) and any(
        issubclass(type(held), AveragedModel) and held.module is value for held in gc.get_objects()
    ):
        raise UsageError(
            f"run.state({name}=…) got the module of an AveragedModel, without its number of "
            "updates: the first update after a restart would replace the average",
            hint=f"register it whole: run.state({name}=average), not average.module",
        )


def warn_of_unregistered_optimizers(
    registered: Mapping[str, Any], warn: Callable[[str], None]
) -> Iterator[None]:
    """Look for optimizers and schedulers of registered models that a restart would begin afresh.

    The first `next` looks for them, each later one warns of those that have gone on since: one that
    was only for a warm-up does not. In doubt there is no warning. It waits for no GPU.
    """
    found = [(weakref.ref(held), words) for held, words in _find_unregistered_optimizers(registered)]
    before = [_read_optimizer_progress(reference) for reference, _ in found]
    while True:
        yield
        for (reference, words), progress in zip(found, before, strict=True):
            if _read_optimizer_progress(reference) not in ([], progress):
                warn(words)


def _find_unregistered_optimizers(registered: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    kept = list(registered.values())
    if not all(_saves_only_itself(value) for value in kept):
        return
    models = [(name, value) for name, value in registered.items() if isinstance(value, nn.Module)]
    owners = {id(parameter): name for name, model in models for parameter in model.parameters()}
    found = [held for held in gc.get_objects() if issubclass(type(held), _TRAINERS)]
    # Of one within another one, as in SequentialLR, the outer one is to be registered.
    known = {
        id(value) for value in [*kept, *(part for held in found for part in _list_inner_optimizers(held))]
    }
    known |= {id(value.param_groups) for value in kept if isinstance(value, Optimizer)}
    for held in found:
        if known & {id(held), id(vars(held).get("param_groups"))}:
            continue
        name = "scheduler" if isinstance(held, LRScheduler) else "optimizer"
        groups = getattr(vars(held).get("optimizer", held), "param_groups", ())
        names = (owners.get(id(parameter)) for group in groups for parameter in group["params"])
        if (model := next(filter(None, names), None)) is not None:
            told = f"{type(held).__name__} of `{model}` is not registered: after a restart it "
            yield held, f"{told}starts from zero; register it, too: run.state({name}=...)"


def _saves_only_itself(value: Any) -> bool:
    parts = value.modules() if isinstance(value, nn.Module) else [value]
    kinds = {kind for part in parts for kind in type(part).__mro__}
    saving = [kind for kind in kinds if {"state_dict", "get_extra_state"} & {*vars(kind)}]
    packages = {kind.__module__.partition(".")[0] for kind in saving}
    return bool(packages) and packages <= _SAVING_NO_OTHERS


def _list_inner_optimizers(held: Any) -> Iterator[Any]:
    """Yield optimizers and schedulers that save with this one; a scheduler's optimizer does not."""
    for name, value in vars(held).items():
        if name != "optimizer" or isinstance(held, Optimizer):
            parts = value if isinstance(value, list | tuple) else (value,)
            yield from (part for part in parts if issubclass(type(part), _TRAINERS))


def _read_optimizer_progress(reference: weakref.ref[Any]) -> list[Any]:
    held, values = reference(), list[Any]()
    for part in [] if held is None else [held, *_list_inner_optimizers(held)]:
        values.append(getattr(part, "last_epoch", None))
        for state in vars(part).get("state", {}).values():
            values += state.values() if isinstance(state, dict) else [state]
    return [
        (id(value), local_shard_of_tensor(value)._version) if isinstance(value, torch.Tensor) else value  # noqa: SLF001  # documented
        for value in values
        if isinstance(value, torch.Tensor | int | float)
    ]
