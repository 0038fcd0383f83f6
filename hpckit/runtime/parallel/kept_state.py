"""Modules and functions that run once more than the training does, and are set back after.

So what looks at a model or a loss leaves no trace in running means, modes and counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hpckit.runtime.generators import OWN_GENERATORS, kept_generators

_HELD = frozenset({"_parameters", "_buffers", "_modules"})
_OF_TORCH = frozenset(vars(nn.Module()))
_DEEPEST, _MOST_ITEMS = 4, 1000


@contextmanager
def keep_state(module: nn.Module) -> Iterator[None]:
    """Have a module run on copies of its buffers, and set back generators and attributes after.

    Also generators that are attributes. What is changed inside of others, such as a list, stays.
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
    try:
        with kept_generators(own_generators(module)):
            yield
    finally:
        for one, held in buffers:
            for key in one._buffers.keys() - held.keys():  # noqa: SLF001
                del one._buffers[key]  # noqa: SLF001
            one._buffers.update(held)  # noqa: SLF001
        for one, earlier in attributes:
            _set_back(one, earlier)


@contextmanager
def keep_state_of(function: Callable[..., Any]) -> Iterator[None]:
    """Set back generators, and what a function reaches, such as running means, after.

    It reaches what it has in its closure, its defaults and its object, and names of its file.
    """
    found = list(_reached(function))
    tensors = [(one, one.detach().clone()) for one in found if isinstance(one, Tensor)]
    with ExitStack() as stack:
        stack.enter_context(kept_generators([one for one in found if _is_generator(one)]))
        for one in found:
            if isinstance(one, nn.Module):
                stack.enter_context(keep_state(one))
        try:
            yield
        finally:
            with torch.no_grad():
                for one, earlier in tensors:
                    if not torch.equal(one, earlier):  # autograd may need it as it is
                        one.detach().copy_(earlier)


def own_generators(module: nn.Module) -> list[Any]:
    """Return the generators that modules have in attributes, or at hand in their `forward`."""
    modules = list(module.modules())
    held = [one for each in modules for key, one in vars(each).items() if key not in _OF_TORCH]
    begun = [*dict.fromkeys(type(each).forward for each in modules), *held]
    return [one for start in begun for one in _reached(start) if _is_generator(one)]


def _is_generator(one: Any) -> bool:
    return isinstance(one, OWN_GENERATORS)


def _reached(start: Any) -> Iterator[Any]:
    """Yield the modules, the tensors outside of them, and the generators that are at hand."""
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(start, 0)]
    while waiting:
        one, depth = waiting.pop()
        if id(one) in seen or depth > _DEEPEST:
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module | Tensor) or _is_generator(one):
            yield one
        else:
            waiting += [(held, depth + 1) for held in _held_by(one)]


def _held_by(one: Any) -> list[Any]:
    match one:
        case partial():
            return [one.func, *one.args, *one.keywords.values()]
        case MethodType():
            return [one.__self__, one.__func__]
        case FunctionType():
            cells = [cell.cell_contents for cell in one.__closure__ or () if _is_full(cell)]
            own = [one.__globals__.get(name) for name in one.__code__.co_names]
            kinds = (nn.Module, Tensor, FunctionType, *OWN_GENERATORS)
            named = [held for held in own if isinstance(held, kinds)]
            return [*cells, *named, *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        case dict() | list() | tuple() | set():
            return list(one.values() if isinstance(one, dict) else one)[:_MOST_ITEMS]
        case _:
            return [] if isinstance(one, type | ModuleType) else _attributes_of(one)


def _attributes_of(one: Any) -> list[Any]:
    listed = [vars(kind).get("__slots__", ()) for kind in type(one).__mro__]
    names = {name for slots in listed for name in ([slots] if isinstance(slots, str) else slots)}
    slots = [getattr(one, name, None) for name in sorted(names - {"__dict__", "__weakref__"})]
    return [*getattr(one, "__dict__", {}).values(), *slots]


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # not assigned yet
        return False


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
