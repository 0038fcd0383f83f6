"""Modules and functions that run once more than the training does, and are set back after.

So what looks at a model or a loss leaves no trace in running means, modes and counters.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from io import IOBase
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from hpckit.runtime.generators import OWN_GENERATORS, preserve_generators

try:
    from numpy import ndarray
except ImportError:  # torch works without it
    ndarray = None  # type: ignore[assignment,misc]

_HELD = frozenset({"_parameters", "_buffers", "_modules"})
_OF_TORCH = frozenset(vars(nn.Module()))
_DEEPEST, _MOST_ITEMS, _MOST_SEEN = 8, 1000, 100_000
_OTHERS = (sys.stdlib_module_names - {"types"}) | {"hpckit", "torch", "numpy"}
"""Packages whose functions and objects stay as they are: threads may be at work with them."""


@contextmanager
def preserve_module_state(module: nn.Module) -> Iterator[None]:
    """Have a module run on copies of its buffers, and set back generators and attributes after.

    Also what these hold, such as the items of a list.
    """
    modules = list(module.modules())
    buffers = [(module, dict(module._buffers)) for module in modules]  # noqa: SLF001  # torch has no other way
    attributes = [(module, dict(vars(module))) for module in modules]
    copies = {
        id(tensor): tensor.detach().clone()
        for _, held in buffers
        for tensor in held.values()
        if tensor is not None
    }
    for one, held in buffers:
        one._buffers.update({key: copies.get(id(value)) for key, value in held.items()})  # noqa: SLF001
    try:
        with (
            preserve_generators(find_module_generators(module)),
            _preserve_contents(_find_module_objects(module)),
        ):
            yield
    finally:
        for one, held in buffers:
            for key in one._buffers.keys() - held.keys():  # noqa: SLF001
                del one._buffers[key]  # noqa: SLF001
            one._buffers.update(held)  # noqa: SLF001
        for one, earlier in attributes:
            _restore_module_attributes(one, earlier)


@contextmanager
def preserve_function_state(function: Callable[..., Any]) -> Iterator[None]:
    """Set back generators, and what a function reaches, such as means and counters, after.

    It reaches what it has in its closure, its defaults and its object, and names of its file.
    Raises TypeError if it reaches an iterator, which would have given what it gave.
    """
    found = list(_find_reachable_objects(function))
    for held in found:
        if isinstance(held, Iterator) and not isinstance(held, IOBase):
            raise TypeError(f"{type(held).__name__} cannot be set back")
    tensors = [(held, held.detach().clone()) for held in found if isinstance(held, Tensor)]
    with ExitStack() as stack:
        stack.enter_context(preserve_generators([held for held in found if _is_random_generator(held)]))
        stack.enter_context(_preserve_contents(found))
        for held in found:
            if isinstance(held, nn.Module):
                stack.enter_context(preserve_module_state(held))
        try:
            yield
        finally:
            with torch.no_grad():
                for one, earlier in tensors:
                    if not torch.equal(one, earlier):  # autograd may need it as it is
                        one.detach().copy_(earlier)


def find_module_generators(module: nn.Module) -> list[Any]:
    """Return the generators that modules have in attributes, or at hand in their `forward`."""
    return [held for held in _find_module_objects(module) if _is_random_generator(held)]


def _find_module_objects(module: nn.Module) -> Iterator[Any]:
    modules = list(module.modules())
    held = [one for each in modules for key, one in vars(each).items() if key not in _OF_TORCH]
    for start in (*dict.fromkeys(type(each).forward for each in modules), *held):
        yield from _find_reachable_objects(start)


@contextmanager
def _preserve_contents(found: Iterable[Any]) -> Iterator[None]:
    puts = [put for held in found if (put := _build_restorer(held)) is not None]
    try:
        yield
    finally:
        for put in puts:
            put()


def _build_restorer(one: Any) -> Callable[[], Any] | None:
    put: Callable[[], Any] | None = None
    match one:
        case dict():
            put = partial(_restore_items, one, dict(one))
        case list():
            put = partial(one.__setitem__, slice(None), list(one))
        case deque():
            put = partial(_restore_collection, one, one.extend, list(one))
        case set():
            put = partial(_restore_collection, one, one.update, list(one))
        case CellType():
            put = partial(setattr, one, "cell_contents", one.cell_contents)
        case FunctionType() if _is_python_module_of_user(one.__globals__.get("__name__")):
            names = one.__globals__.keys() & one.__code__.co_names
            put = partial(one.__globals__.update, {name: one.__globals__[name] for name in names})
        case _ if ndarray is not None and isinstance(one, ndarray):
            put = partial(one.__setitem__, ..., one.copy())
        case _ if _is_python_module_of_user(type(one).__module__):
            slots = {name: getattr(one, name) for name in _list_slots(one) if hasattr(one, name)}
            put = partial(_restore_slots, one, slots)
    return put


def _restore_items(into: dict[Any, Any], earlier: dict[Any, Any]) -> None:
    for key in into.keys() - earlier.keys():
        del into[key]
    for key, value in earlier.items():
        if key not in into or into[key] is not value:
            into[key] = value


def _restore_collection(into: deque[Any] | set[Any], put: Callable[[Any], None], earlier: list[Any]) -> None:
    into.clear()
    put(earlier)


def _restore_slots(into: Any, earlier: dict[str, Any]) -> None:
    for name, value in earlier.items():
        object.__setattr__(into, name, value)


def _is_random_generator(one: Any) -> bool:
    return isinstance(one, OWN_GENERATORS)


def _find_reachable_objects(start: Any) -> Iterator[Any]:
    """Yield what is at hand and may change: modules, tensors outside of them, and other holders."""
    seen: dict[int, Any] = {}
    waiting: list[tuple[Any, int]] = [(start, 0)]
    while waiting and len(seen) < _MOST_SEEN:
        one, depth = waiting.pop()
        if id(one) in seen or depth > _DEEPEST:
            continue
        seen[id(one)] = one  # kept: else the next object might have its number
        yield one
        if not (isinstance(one, nn.Module | Tensor) or _is_random_generator(one)):
            waiting += [(held, depth + 1) for held in _list_held_objects(one)]


def _list_held_objects(one: Any) -> list[Any]:
    held: list[Any] = []
    match one:
        case partial():
            held = [one.func, *one.args, *one.keywords.values()]
        case MethodType():
            held = [one.__self__, one.__func__]
        case FunctionType() if _is_python_module_of_user(one.__globals__.get("__name__")):
            named = [one.__globals__.get(name) for name in one.__code__.co_names]
            defaults = (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())
            cells = [cell for cell in one.__closure__ or () if _is_cell_assigned(cell)]
            held = [*cells, *named, *defaults, vars(one)]
        case CellType():
            held = [one.cell_contents]
        case dict() | list() | tuple() | set() | deque():
            held = list(one.values() if isinstance(one, dict) else one)[:_MOST_ITEMS]
        case _ if _is_python_module_of_user(type(one).__module__):
            held = [getattr(one, name, None) for name in _list_slots(one)]
            held += [vars(one)] if hasattr(one, "__dict__") else []
    return held


def _is_python_module_of_user(module: Any) -> bool:
    return str(module).partition(".")[0] not in _OTHERS


def _list_slots(one: Any) -> list[str]:
    listed = [vars(kind).get("__slots__", ()) for kind in type(one).__mro__]
    names = {name for slots in listed for name in ([slots] if isinstance(slots, str) else slots)}
    return sorted(names - {"__dict__", "__weakref__"})


def _is_cell_assigned(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # not assigned yet
        return False
    return True


@contextmanager
def use_evaluation_mode(*models: nn.Module) -> Iterator[None]:
    """Have models in evaluation mode; afterwards each module is in the mode that it was in."""
    modules = {id(module): module for model in models for module in model.modules()}.values()
    earlier = [(module, module.training) for module in modules]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for one, mode in earlier:
            one.training = mode


def _restore_module_attributes(module: nn.Module, earlier: dict[str, Any]) -> None:
    now = vars(module)
    for key in [key for key in now if key not in earlier and key not in _HELD]:
        del now[key]
    now.update({key: value for key, value in earlier.items() if key not in _HELD})
