"""Stages of a pipeline whose rehearsal of shapes leaves nothing in the model.

Before the first batch of each shape torch runs every stage once, to learn the shapes of what stages
send to each other: all but the first on memory that holds anything, in the mode of the step. Here
they run on zeros, on copies of the buffers, and what the modules set meanwhile is set back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

_HELD = frozenset({"_parameters", "_buffers", "_modules"})


@dataclass(slots=True)
class Rehearsal:
    """Whether a rehearsal runs on this rank."""

    runs: bool = False


class RehearsedStage(PipelineStage):
    """A stage that rehearses apart from its model, and says in `rehearsal` that it does."""

    def __init__(self, rehearsal: Rehearsal, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(module, *args, **kwargs)
        self._rehearsal = rehearsal

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with _apart(self.submod, self._rehearsal, on_zeros=not self.is_first):
            return super()._prepare_forward_infra(*args, **kwargs)

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        # With parallel.recompute the backward pass runs units again.
        with _apart(self.submod, self._rehearsal, on_zeros=False):
            return super()._prepare_backward_infra(*args, **kwargs)


@contextmanager
def _apart(module: nn.Module, rehearsal: Rehearsal, *, on_zeros: bool) -> Iterator[None]:
    handle = module.register_forward_pre_hook(_zero, prepend=True) if on_zeros else None
    rehearsal.runs = True
    try:
        with keep_state(module):
            yield
    finally:
        rehearsal.runs = False
        if handle is not None:
            handle.remove()


@contextmanager
def keep_state(module: nn.Module) -> Iterator[None]:
    """Have a module run on copies of its buffers, and set back generators and attributes after.

    What is changed inside of an attribute, such as a list, stays changed.
    """
    modules = list(module.modules())
    buffers = [(one, dict(one._buffers)) for one in modules]  # noqa: SLF001  # torch has no other way
    attributes = [(one, dict(vars(one))) for one in modules]
    copies = {
        id(tensor): tensor.detach().clone()
        for _, held in buffers
        for tensor in held.values()
        if tensor is not None
    }
    for one, held in buffers:
        one._buffers.update({key: copies.get(id(value)) for key, value in held.items()})  # noqa: SLF001
    gpus = {one.device for one in module.parameters() if one.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=list(gpus)):
            yield
    finally:
        for one, held in buffers:
            for key in one._buffers.keys() - held.keys():  # noqa: SLF001
                del one._buffers[key]  # noqa: SLF001
            one._buffers.update(held)  # noqa: SLF001
        for one, earlier in attributes:
            _set_back(one, earlier)


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Have models in evaluation mode; afterwards each module is in the mode that it was in."""
    modules = {id(one): one for model in models for one in model.modules()}.values()
    earlier = [(one, one.training) for one in modules]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for one, mode in earlier:
            one.training = mode


def _set_back(module: nn.Module, earlier: dict[str, Any]) -> None:
    now = vars(module)
    for key in [key for key in now if key not in earlier and key not in _HELD]:
        del now[key]
    now.update({key: value for key, value in earlier.items() if key not in _HELD})


def _zero(_: nn.Module, args: tuple[Any, ...]) -> None:
    with torch.no_grad():
        for one in args:
            if isinstance(one, Tensor):
                one.detach().zero_()
