"""Find the user's function by name, check it, and call it.

Refuses what cannot be called as `function(config, run)`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from hpckit.errors import ConfigError

if TYPE_CHECKING:
    from hpckit.runtime.rank.run import Run

_LAZY = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
_MOST = 1000
"""Maximum number of functions searched for a step loop."""


def load_user_function(text: str) -> Callable[..., Any]:
    """Import `module:function`; raises ConfigError if it does not exist or cannot run.

    Errors raised by the import of the user's module pass through unchanged.
    """
    module_name, _, name = text.partition(":")
    module = importlib.import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(
            f"entry_point {text!r}: module {module_name} ({module.__file__}) has no function {name!r}",
            hint=f"it has {', '.join(names[:12]) or 'none'}",
        )
    if any(kind(function) for kind in _LAZY):
        raise _not_plain_function_error(function)
    _check_accepts_config_and_run(function)
    return function  # type: ignore[no-any-return]  # callable, as just checked


def _check_accepts_config_and_run(function: Callable[..., Any]) -> None:
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a C function without a signature
    try:
        parameters.bind(None, None)
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigError(
            f"entry_point {name}{parameters} cannot be called with a configuration and a run: {error}",
            hint=f"let it take both: def {name}(config, run)",
        ) from None


def call_user_function(function: Callable[..., Any], run: Run) -> None:
    """Call the user's function; raises ConfigError if the call ran none of its lines."""
    result = function(run.config, run)
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise _not_plain_function_error(function)


def _not_plain_function_error(function: Callable[..., Any]) -> ConfigError:
    name = getattr(function, "__qualname__", repr(function))
    return ConfigError(
        f"entry_point {name} is a coroutine or generator function: calling it runs none of it",
        hint="make it a plain `def` without `yield`; inside it, asyncio.run() runs a coroutine",
    )


def calls_method(function: Callable[..., Any], method: str, code: Path) -> bool:
    """Return whether a function, or what it uses from below this folder, calls `….METHOD(…)`.

    Looks only at names and runs nothing; False if the call is well hidden.
    """
    seen, waiting = set[int](), [function]
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for plain in _list_functions(one):
            names = set(_list_used_names(plain.__code__))
            if method in names:
                return True
            waiting += _find_user_objects_by_name(plain.__globals__, names, code)
    return False


def _list_functions(one: Any) -> Iterator[Any]:
    while isinstance(one, partial):
        one = one.func
    one = inspect.unwrap(one)
    if inspect.isfunction(one):
        yield one
    elif inspect.ismethod(one):
        yield one.__func__
    else:
        kind = one if inspect.isclass(one) else type(one)
        yield from filter(inspect.isfunction, vars(kind).values())


def _list_used_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _list_used_names(inner)


def _find_user_objects_by_name(globals_: dict[str, Any], names: set[str], code: Path) -> Iterator[Any]:
    found = [globals_[name] for name in names if name in globals_]
    modules = [held for held in found if isinstance(held, ModuleType)]
    found += [vars(module)[name] for module in modules for name in names if name in vars(module)]
    for held in found:
        if inspect.isfunction(held) or inspect.isclass(held):
            file = getattr(inspect.getmodule(held), "__file__", None)
            if file is not None and Path(file).is_relative_to(code):
                yield held
