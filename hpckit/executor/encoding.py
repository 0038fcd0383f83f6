"""Calls and results as words and files: what the submitting process and the ranks both read and write.

A function that runs can import, and arguments that JSON can hold, need no pickle; nor does such a
result. Arguments are in files of the user alone, never in words that others see.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from hashlib import sha256
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from hpckit.api.pickling import (
    can_runs_import,
    describe_value,
    is_json_exact,
    load_own_pickle,
    open_own_file,
    pickle_for_run,
)
from hpckit.errors import UsageError
from hpckit.record.layout import RunPaths
from hpckit.record.store import create_file_if_missing, make_private_folder, write_chunks

EncodedCall = tuple[str, tuple[bytes, ...]]
"""The name of a call, and its parts: one is JSON, two are pickles of the function and its arguments."""


class DelayedSubmission:
    """A call to be made later, `function(*args, **kwargs)`: what a `checkpoint(...)` returns.

    Example:
        def checkpoint(self, total):
            return hpckit.DelayedSubmission(self, total, start=self.reached)

    """

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def result(self) -> Any:
        """Make the call now, in this process."""
        return self.function(*self.args, **self.kwargs)


def encode_calls(calls: Sequence[DelayedSubmission], roots: Sequence[Path]) -> list[EncodedCall]:
    """Return calls as they are now; runs import from `roots`, and what is installed.

    The function of several calls is pickled once. Raises UsageError for what cannot be pickled.
    """
    encoded: list[EncodedCall] = []
    functions: dict[int, bytes] = {}
    imports = cache(partial(can_runs_import, roots))
    for call in calls:
        own = getattr(call.function, "func", call.function)  # of a partial
        name = str(getattr(own, "__name__", type(own).__name__))
        if not callable(call.function):
            raise UsageError(f"{call.function!r} cannot be called", hint="submit(function, *arguments)")
        if (text := _write_plain_call(call, imports)) is not None:
            encoded.append((name, (text.encode(),)))
            continue
        if (key := id(call.function)) not in functions:
            functions[key] = pickle_for_run(name, call.function, imports)
        arguments = pickle_for_run(f"the arguments of {name}", (call.args, call.kwargs), imports)
        encoded.append((name, (functions[key], arguments)))
    return encoded


def _write_plain_call(call: DelayedSubmission, imports: Callable[[str], bool]) -> str | None:
    name = str(getattr(call.function, "__qualname__", ""))
    module: Any = sys.modules.get(str(getattr(call.function, "__module__", "")))
    found = reduce(lambda owner, part: getattr(owner, part, None), name.split("."), module)
    by_name = module is not None and found is call.function and imports(module.__name__)
    if not by_name or not is_json_exact([*call.args, call.kwargs]):
        return None
    return json.dumps({"function": f"{module.__name__}:{name}", "args": call.args, "kwargs": call.kwargs})


def write_calls(calls: Sequence[EncodedCall], folder: Path) -> list[str]:
    """Write all calls to one file of a private folder; return for each a text that says where it is.

    Texts of equal calls that are written together are equal, and JSON without `$`, in which a
    configuration would see an interpolation. Raises UsageError if the file cannot be written,
    ForeignError if others could replace it.
    """
    places: dict[bytes, tuple[int, int]] = {}
    size, digest = 0, sha256()
    for part in dict.fromkeys(part for _, parts in calls for part in parts):
        places[part], size = (size, len(part)), size + len(part)
        digest.update(part)
    file = folder / digest.hexdigest()[:32]  # calls that are submitted again have the same words
    try:
        make_private_folder(folder)
        write_chunks(file, places)
    except OSError as error:
        raise UsageError(f"calls cannot be written to {folder}: {error.strerror}") from error
    open_own_file(file).close()
    found = ({"call": name, "file": str(file), "places": [*map(places.get, parts)]} for name, parts in calls)
    return [json.dumps(one).replace("$", "\\u0024") for one in found]


def read_call(text: str) -> DelayedSubmission:
    """Return the call that a text names; raises ForeignError, OSError, and whatever its import raises."""
    record = json.loads(text)
    with open_own_file(Path(record["file"])) as source:
        held = [source.read(size) for start, size in record["places"] if source.seek(start) == start]
    if len(held) > 1:
        function, (args, kwargs) = map(pickle.loads, held)
        return DelayedSubmission(function, *args, **kwargs)
    plain = json.loads(held[0])
    module, _, name = plain["function"].partition(":")
    return DelayedSubmission(attrgetter(name)(import_module(module)), *plain["args"], **plain["kwargs"])


def commit_result(paths: RunPaths, rank: int, place: Mapping[str, int], value: object) -> None:
    """Write what a call returned on a rank, unless that was done before; `place` says where it ran.

    Raises UsageError if it cannot be pickled.
    """
    make_private_folder(paths.call)
    record = {"rank": rank, **place, "type": type(value).__name__, "repr": describe_value(value)}
    if is_json_exact(value):
        record["value"] = value
    else:
        file = paths.call / f"rank-{rank:05d}.{'.'.join(map(str, place.values()))}.pkl"
        write_chunks(file, [pickle_for_run(f"the returned {type(value).__name__}", value)])
        record["pickle"] = file.name
    create_file_if_missing(paths.call_result(rank), json.dumps(record) + "\n")


def read_result(paths: RunPaths, rank: int) -> Any:
    """Return what a call returned on a rank; raises FileNotFoundError if it has not, ForeignError."""
    with open_own_file(paths.call_result(rank)) as source:
        record = json.load(source)
    return load_own_pickle(paths.call / record["pickle"]) if "pickle" in record else record["value"]
