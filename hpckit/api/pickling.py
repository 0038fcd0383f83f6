"""Pickles of calls, results and errors: what the reader cannot import goes along by value.

A pickle is code: one that others could have written is refused. No Hydra, no torch here.
"""

from __future__ import annotations

import functools
import io
import math
import os
import pickle
import reprlib
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType, WrapperDescriptorType
from typing import IO, Any

import cloudpickle

from hpckit.errors import ForeignError, UsageError
from hpckit.record.ownership import (
    PathStatus,
    explain_unsafe_ownership,
    explain_unsafe_path,
    read_path_status,
)
from hpckit.record.snapshot.entry_point import find_module
from hpckit.record.snapshot.environment import ask_python
from hpckit.record.store import open_regular_file
from hpckit.runtime.environ import copy_environment

_CACHED = type(functools.cache(len))
_IN_MODULES = (type, FunctionType, ModuleType, BuiltinFunctionType, _CACHED)
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_OF_THE_READER = frozenset({"__builtins__", "__loader__", "__spec__", "__cached__"})
_DEEPEST, _LONGEST_BITS = 50, 1000
"""What JSON holds, at most: Python's reads no numbers of thousands of digits, nor deep lists."""
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_FIND = """\
import json, sys
from hpckit.record.snapshot.entry_point import find_module
found = {name: find_module(name, [], installed=True) for name in json.load(sys.stdin)}
print(json.dumps({name: str(one.file or (*one.locations, "")[0]) for name, one in found.items() if one}))
"""
_found: dict[str, str] = {}
"""Where a new Python of this machine finds modules; empty if it does not."""


def can_runs_import(roots: Sequence[Path], name: str) -> bool:
    """Return whether the Python of a run, which has another `sys.path`, finds the very same file.

    It imports from `roots`, and what a new Python imports that is started as those of runs are.
    """
    if name == "__main__":
        return False
    module = sys.modules.get(name)
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if place is None or not Path(place).exists():  # part of its package, or of Python
        above = name.rpartition(".")[0]
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        return can_runs_import(roots, above) if above else origin in {"built-in", "frozen"}
    real = Path(place).resolve()
    if any(real.is_relative_to(Path(sysconfig.get_path(kind)).resolve()) for kind in _INSTALLED):
        return True
    found = find_module(name, roots, installed=False)
    if found is not None:
        return (found.file or Path(found.locations[0])).resolve() == real
    if name not in _found:
        new = [one for one in sys.modules if one not in _found]
        _found.update(dict.fromkeys(new, ""))
        _found.update(ask_python(sys.executable, _FIND, copy_environment(), new) or {})
    return bool(_found[name]) and Path(_found[name]).resolve() == real


def is_json_exact(value: object, deepest: int = _DEEPEST) -> bool:
    """Return whether JSON gives back a value with all its types: lists yes, tuples no."""
    if type(value) is list:
        return deepest > 0 and all(is_json_exact(one, deepest - 1) for one in value)
    if type(value) is dict:
        return all(type(key) is str for key in value) and is_json_exact([*value.values()], deepest)
    if type(value) is int:
        return value.bit_length() <= _LONGEST_BITS
    return type(value) in {bool, str, type(None)} or (type(value) is float and math.isfinite(value))


def describe_value(value: object) -> str:
    """Return a short text for people, whatever a value says of itself."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001  # a user's own, and that of a class with the name of a built-in one
        return object.__repr__(value)


class _RunPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Decides for each function, class and module that it meets whether it goes by value."""

    lock = threading.RLock()  # one at a time: cloudpickle's registry is the whole process's

    def __init__(self, file: IO[bytes], imports: Callable[[str], bool]) -> None:
        super().__init__(file)
        self.imports = imports
        self.registered: list[ModuleType] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException):
            return _reduce_error(obj, self.imports)
        if isinstance(obj, _FILES) and obj not in (sys.stdout, sys.stderr):
            raise pickle.PicklingError(f"{obj!r} is an open file")
        if isinstance(obj, _IN_MODULES):
            module = obj if isinstance(obj, ModuleType) else sys.modules.get(obj.__module__)
            if module is not None and not self.imports(module.__name__):
                self._send_by_value(obj, module)
                if isinstance(obj, _CACHED):
                    made = _make_cached, (obj.cache_parameters(),)
                    return *made, obj.__wrapped__, None, None, functools.update_wrapper
                if isinstance(obj, ModuleType) and module.__name__ != "__main__":
                    own = {name: one for name, one in vars(obj).items() if name not in _OF_THE_READER}
                    return ModuleType, (obj.__name__,), own
        return super().reducer_override(obj)

    def _send_by_value(self, obj: Any, module: ModuleType) -> None:
        file = str(module.__dict__.get("__file__"))
        if isinstance(obj, BuiltinFunctionType) or file.endswith(tuple(EXTENSION_SUFFIXES)):
            message = f"runs cannot import {module.__name__}, and {obj!r} is found by its name alone"
            raise pickle.PicklingError(message)
        known = cloudpickle.list_registry_pickle_by_value()
        if module.__name__ != "__main__" and module.__name__ not in known:
            cloudpickle.register_pickle_by_value(module)
            self.registered.append(module)


# No thread of a child process could give back the lock.
os.register_at_fork(after_in_child=lambda: setattr(_RunPickler, "lock", threading.RLock()))


def _make_cached(parameters: Mapping[str, Any]) -> Any:
    """Return a cached function that calls what it will wrap: a function that may use the cached one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return cached.__wrapped__(*args, **kwargs)

    cached: Any = functools.lru_cache(**parameters)(call)
    return cached


def pickle_for_run(what: str, value: object, imports: Callable[[str], bool] = bool) -> bytes:
    """Return a pickle; what is of modules that the reader does not import goes along by value.

    Raises UsageError for what cannot be pickled.
    """
    with _RunPickler.lock, io.BytesIO() as file:
        pickler = _RunPickler(file, imports)
        try:
            pickler.dump(value)
            return file.getvalue()
        except Exception as error:  # anything: a user's own __reduce__ runs
            raise UsageError(
                f"{what} cannot be sent to a run: {error}",
                hint="files, locks, sockets and generators cannot be pickled: make them in the function",
            ) from error
        finally:
            for module in pickler.registered:
                cloudpickle.unregister_pickle_by_value(module)


def _reduce_error(error: BaseException, imports: Callable[[str], bool]) -> Any:
    """Have the errors that led to one go along, each if it can."""
    reduced = error.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if isinstance(reduced, str):
        return NotImplemented
    name = "__cause__" if error.__cause__ or error.__suppress_context__ else "__context__"
    before: dict[str, bytes] = {}
    with suppress(UsageError):
        before[name] = pickle_for_run(name, getattr(error, name), imports)
    return (_restore_error, (*reduced[:2], before), *reduced[2:])


def _restore_error(make: Any, args: Sequence[Any], before: Mapping[str, bytes]) -> BaseException:
    """Make an error as it was: its own constructor may take other arguments than it has kept."""
    if getattr(make, "__reduce__", None) is BaseException.__reduce__:
        error: BaseException = make.__new__(make, *args)
        starts = (vars(kind).get("__init__") for kind in make.__mro__)
        next(start for start in starts if isinstance(start, WrapperDescriptorType))(error, *args)
    else:
        error = make(*args)
    for name, data in before.items():
        with suppress(Exception):  # its class may not be here
            setattr(error, name, pickle.loads(data))  # noqa: S301  # of the same file
    return error


def load_own_pickle(file: Path) -> Any:
    """Return what a pickle holds; raises ForeignError, OSError, and whatever unpickling raises."""
    with open_own_file(file) as source:
        return pickle.load(source)  # noqa: S301  # the user's own, as just checked


def open_own_file(file: Path) -> IO[bytes]:
    """Open a file; raises ForeignError unless this user alone can write to it and its folder, OSError."""
    source, folder = open_regular_file(file), file.parent
    seen = os.fstat(source.fileno())
    entries = (read_path_status(folder), PathStatus(path=str(file), uid=seen.st_uid, mode=seen.st_mode))
    reasons = (explain_unsafe_ownership(entry, os.geteuid()) for entry in entries)
    found = explain_unsafe_path(folder) or next(filter(None, reasons), None)
    if found is not None:
        source.close()
        message = f"{file} is not read, as others may have written it: {found.reason}"
        raise ForeignError(message, hint=found.hint)
    return source
