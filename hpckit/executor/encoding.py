"""Calls and results as words and files: what the submitting process and the ranks both read and write.

A function that runs can import, and arguments that JSON can hold, need no pickle; nor does such a
result. A pickle is code: one that others could have written is refused. No Hydra, no torch here.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import reprlib
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from hpckit.errors import ForeignError, UsageError
from hpckit.record.layout import RunPaths
from hpckit.record.ownership import explain_unsafe_ownership, explain_unsafe_path, read_path_status
from hpckit.record.snapshot.entry_point import find_module
from hpckit.record.store import create_file_if_missing, make_private_folder, read_json, write_chunks
from hpckit.values import dataclass

_LONGEST_TEXT = 32_000
"""Characters of a call in a configuration; longer arguments go into the file of pickles."""
NEXT_CALL = "next.pkl"
"""What the next attempt calls, in a run's folder of its call."""
_BY_VALUE = threading.Lock()
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


class DelayedSubmission:
    """A call to be made later, `function(*args, **kwargs)`: what a `checkpoint(...)` returns.

    Example:
        def checkpoint(self, total):
            return hpckit.DelayedSubmission(self, total, start=self.reached)

    """

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def result(self) -> Any:
        """Make the call now, in this process."""
        return self.function(*self.args, **self.kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedCall:
    """A call as it was submitted: a `text` that has all of it, or pickles of function and arguments."""

    name: str
    text: str = ""
    pickles: tuple[bytes, ...] = ()


def encode_calls(calls: Sequence[DelayedSubmission], roots: Sequence[Path]) -> list[EncodedCall]:
    """Return calls as they are now; runs import from `roots`, and what is installed.

    The function of several calls is pickled once. Raises UsageError for what cannot be pickled.
    """
    encoded: list[EncodedCall] = []
    last: tuple[object, bytes] = (None, b"")
    imports = cache(partial(_can_runs_import, roots))
    for call in calls:
        own = getattr(call.function, "func", call.function)  # of a partial
        name = str(getattr(own, "__name__", type(own).__name__))
        kinds = (own, *map(type, (*call.args, *call.kwargs.values())))
        named = dict.fromkeys(str(getattr(kind, "__module__", "")) for kind in kinds)
        modules = [sys.modules[module] for module in named if module in sys.modules]
        foreign = [module for module in modules if not imports(module)]
        if not foreign and (text := _write_plain_call(call)) is not None:
            encoded.append(EncodedCall(name=name, text=text))
            continue
        if last[0] is not call.function:
            last = (call.function, _pickle_for_run(name, call.function, foreign))
        arguments = _pickle_for_run(f"the arguments of {name}", (call.args, call.kwargs), foreign)
        encoded.append(EncodedCall(name=name, pickles=(last[1], arguments)))
    return encoded


def _write_plain_call(call: DelayedSubmission) -> str | None:
    name = str(getattr(call.function, "__qualname__", ""))
    module = sys.modules.get(str(getattr(call.function, "__module__", "")))
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if module is None or found is not call.function:
        return None
    if not is_json_exact([*call.args]) or not is_json_exact(call.kwargs):
        return None
    plain = {"function": f"{module.__name__}:{name}", "args": call.args, "kwargs": call.kwargs}
    text = _dump_for_config({key: value for key, value in plain.items() if value})
    return text if len(text) <= _LONGEST_TEXT else None


def _can_runs_import(roots: Sequence[Path], module: ModuleType) -> bool:
    """Whether the Python of a run, which has another `sys.path`, finds the very same file."""
    file, name = getattr(module, "__file__", None), module.__name__
    if file is None or name == "__main__":
        return name in sys.builtin_module_names
    real, installed = Path(file).resolve(), map(sysconfig.get_path, _INSTALLED)
    if any(real.is_relative_to(Path(place).resolve()) for place in installed):
        return True
    found = find_module(name, roots, installed=False)
    return found is not None and found.file is not None and found.file.resolve() == real


def is_json_exact(value: object) -> bool:
    """Return whether JSON gives back a value with all its types: lists yes, tuples no."""
    if type(value) is list:
        return all(map(is_json_exact, value))
    if type(value) is dict:
        return all(type(key) is str and is_json_exact(one) for key, one in value.items())
    return type(value) in {bool, int, str, type(None)} or (type(value) is float and math.isfinite(value))


def _dump_for_config(value: object) -> str:
    """Return JSON without `$`, in which a configuration would see an interpolation."""
    return json.dumps(value, separators=(",", ":")).replace("$", "\\u0024")


def _pickle_for_run(what: str, value: object, foreign: Sequence[ModuleType] = ()) -> bytes:
    """Return a pickle; what is in `foreign` modules, which runs cannot import, goes along by value."""
    with _BY_VALUE, ExitStack() as registered:
        try:
            for module in (module for module in foreign if module.__name__ != "__main__"):  # as always
                cloudpickle.register_pickle_by_value(module)
                registered.callback(cloudpickle.unregister_pickle_by_value, module)
            return bytes(cloudpickle.dumps(value))
        except Exception as error:  # anything: a user's own __reduce__ runs
            raise UsageError(
                f"{what} cannot be sent to a run: {error}",
                hint="files, locks, sockets and generators cannot be pickled: make them in the function",
            ) from error


def write_calls(calls: Sequence[EncodedCall], folder: Path) -> list[str]:
    """Return the text of each call; all pickles go into one new file of a private folder.

    Raises UsageError if it cannot be written, ForeignError if others could replace it.
    """
    if not any(call.pickles for call in calls):
        return [call.text for call in calls]
    file = folder / f"{os.urandom(8).hex()}.pkl"
    places: dict[bytes, tuple[int, int]] = {}
    size = 0
    for part in dict.fromkeys(part for call in calls for part in call.pickles):
        places[part], size = (size, len(part)), size + len(part)
    try:
        make_private_folder(folder)
        write_chunks(file, places)
    except OSError as error:
        raise UsageError(f"calls cannot be written to {folder}: {error.strerror}") from error
    refuse_foreign_pickle(file)
    where = {"file": str(file)}
    return [
        call.text or _dump_for_config({**where, "places": [places[part] for part in call.pickles]})
        for call in calls
    ]


def read_call(text: str) -> DelayedSubmission:
    """Return the call in a text; raises ForeignError, and whatever the import of its module raises."""
    record = json.loads(text)
    if "file" in record:
        refuse_foreign_pickle(file := Path(record["file"]))
        with file.open("rb") as source:
            held = [source.read(size) for start, size in record["places"] if source.seek(start) == start]
        function, (args, kwargs) = map(pickle.loads, held)
        return DelayedSubmission(function, *args, **kwargs)
    module, _, name = record["function"].partition(":")
    function = attrgetter(name)(import_module(module))
    return DelayedSubmission(function, *record.get("args", ()), **record.get("kwargs", {}))


def load_own_pickle(file: Path) -> Any:
    """Return what a pickle holds; raises ForeignError, OSError, and whatever unpickling raises."""
    refuse_foreign_pickle(file)
    with file.open("rb") as source:
        return pickle.load(source)  # noqa: S301  # the user's own, as just checked


def refuse_foreign_pickle(file: Path) -> None:
    """Raise ForeignError unless a file and its folder can be written by this user alone."""
    found = explain_unsafe_path(file.parent)
    for path in (file.parent, file):
        found = found or explain_unsafe_ownership(read_path_status(path), os.geteuid())
    if found is not None:
        message = f"{file} is not unpickled, as that runs what others may have written: {found.reason}"
        raise ForeignError(message, hint=found.hint)


def commit_result(paths: RunPaths, rank: int, place: Mapping[str, int], value: object) -> None:
    """Write what a call returned on a rank, unless that was done before; `place` says where it ran.

    Raises UsageError if it cannot be pickled.
    """
    make_private_folder(paths.call)
    record = {"rank": rank, **place, "type": type(value).__name__, "repr": reprlib.repr(value)}
    if is_json_exact(value):
        record["value"] = value
    else:
        file = paths.call / f"rank-{rank:05d}.{'.'.join(map(str, place.values()))}.pkl"
        write_chunks(file, [_pickle_for_run(f"the returned {type(value).__name__}", value)])
        record["pickle"] = file.name
    create_file_if_missing(paths.call_result(rank), json.dumps(record) + "\n")


def read_result(paths: RunPaths, rank: int) -> Any:
    """Return what a call returned on a rank; raises FileNotFoundError if it has not, ForeignError."""
    record = read_json(paths.call_result(rank))
    return load_own_pickle(paths.call / record["pickle"]) if "pickle" in record else record["value"]
