"""Checks what is registered, and counts the parameters that this rank holds of it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from hpckit.errors import UsageError
from hpckit.model.parallel.layout import Layout
from hpckit.runtime.channel import messages
from hpckit.runtime.tensor_parts import local_part


def layout_told(
    rank: int,
    layout: Layout,
    registered: Iterable[Any],
    tied: Iterable[tuple[str, str]] = (),
) -> messages.LayoutTold:
    """Return what a rank reports of its layout, and of its parameters: numbers of elements.

    `registered` may hold anything; its modules count, and each parameter once. Of a DTensor the
    local shard is held. `tied` are pairs of names: where a pipeline has the first one on another
    stage, the second one is a copy of it, which is no further part of the model.
    """
    modules = list(registered)
    found = list(_parameters(modules))
    copies = _copies(modules, tied)
    return messages.LayoutTold(
        round=0,
        rank=rank,
        layout=layout,
        held=sum(local_part(tensor).numel() for tensor in found),
        whole=sum(tensor.numel() for tensor in found if id(tensor) not in copies),
    )


def _copies(registered: Iterable[Any], tied: Iterable[tuple[str, str]]) -> set[int]:
    """Return the ids of parameters that are tied to one which this rank does not have."""
    pairs, found = tuple(tied), set[int]()
    for value in registered:
        if pairs and isinstance(value, torch.nn.Module):
            own = {_bare(name): one for name, one in value.named_parameters()}
            found |= {id(own[two]) for one, two in pairs if two in own and one not in own}
    return found


def is_sharded(value: Any) -> bool:
    """Return whether this is a module of which some parameter is a DTensor."""
    return isinstance(value, torch.nn.Module) and any(
        hasattr(parameter, "to_local") for parameter in value.parameters()
    )


def _parameters(registered: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield each parameter once; one that has no shape yet has no elements either."""
    seen: set[int] = set()
    for value in registered:
        if not isinstance(value, torch.nn.Module):
            continue
        for parameter in value.parameters():
            if id(parameter) not in seen and not is_lazy(parameter):
                seen.add(id(parameter))
                yield parameter


def _bare(name: str) -> str:
    """Return the name of a parameter as a plan has it, without what wraps the model."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def check_state(name: str, value: Any, world_size: int) -> None:
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
