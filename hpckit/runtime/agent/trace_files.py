"""Reads what torch's flight recorder left in a file at a time-out of NCCL: a pickle.

A pickle is a program, and reading one with the pickle module runs it. Here its words are read one
by one, and only those are followed that build dicts, lists, tuples, texts, numbers and truths.
Nothing else is even looked up.
"""

from __future__ import annotations

import os
import pickletools
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_BYTES = 16 * 1024 * 1024
"""A dump of 2000 collectives has 0.3 to 4 MB."""
MOST_WORDS = 2_000_000
"""About three seconds of reading."""
_WRITABLE_BY_OTHERS = 0o022


class TraceFileError(ValueError):
    """A file that is no dump of the flight recorder, or not one of our own ranks."""


def read_trace(path: Path) -> Any:
    """Return the content of a dump; raises OSError and TraceFileError.

    The file and its folder must belong to this user, and nobody else may write them.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise TraceFileError(f"{path} is no file")
        for status in (about, path.parent.stat()):
            if status.st_uid != os.geteuid() or status.st_mode & _WRITABLE_BY_OTHERS:
                raise TraceFileError(f"others can write {path}")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise TraceFileError(f"{path} is larger than {MOST_BYTES} bytes")
    return plain_value(data)


def plain_value(data: bytes) -> Any:
    """Return the plain value that a pickle holds; raises TraceFileError for any other pickle."""
    reader = _Reader()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MOST_WORDS:
                raise TraceFileError("the pickle is too long")
            if opcode.name == "STOP":
                return reader.stack.pop()
            reader.follow(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise TraceFileError(f"no plain pickle: {error}") from None
    raise TraceFileError("the pickle has no end")


class _Mark:
    """Where a list of items begins on the stack."""


class _Reader:
    """The state of reading: what is built so far, and what has a number to be named by."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        """Follow one word; raises TraceFileError for one that builds no plain value."""
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _NEW:
            self.stack.append(_NEW[name]())
        elif name in _PUT:
            self._memo[argument] = self.stack[-1]
        elif name in _GET:
            self.stack.append(self._memo[argument])
        elif name in _BUILD:
            _BUILD[name](self)
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self.stack[-1]
        elif name not in _IGNORED:
            raise TraceFileError(f"no plain pickle: it holds {name}")

    def items(self) -> list[Any]:
        """Take what came since the latest mark from the stack."""
        place = len(self.stack) - 1
        while not isinstance(self.stack[place], _Mark):  # IndexError without one
            place -= 1
            if place < 0:
                raise TraceFileError("no plain pickle: a list without a beginning")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def extend(self, items: list[Any]) -> None:
        """Add values to a list."""
        if type(self.stack[-1]) is not list:
            raise TraceFileError("no plain pickle: values are added to what is no list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        """Add pairs, keys and values in turn, to a dict."""
        if type(self.stack[-1]) is not dict:
            raise TraceFileError("no plain pickle: pairs are added to what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in {str, int}:
                raise TraceFileError("no plain pickle: a key is neither a text nor a number")
            self.stack[-1][key] = value

    def last(self, size: int) -> list[Any]:
        """Take the last `size` values from the stack."""
        items = self.stack[-size:]
        del self.stack[-size:]
        return items


_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "INT", "LONG1", "BINFLOAT"}
    | {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": _Mark,
}
_PUT = frozenset({"BINPUT", "LONG_BINPUT"})
_GET = frozenset({"BINGET", "LONG_BINGET"})
_BUILD: dict[str, Callable[[_Reader], None]] = {
    "APPEND": lambda reader: reader.extend(reader.last(1)),
    "APPENDS": lambda reader: reader.extend(reader.items()),
    "SETITEM": lambda reader: reader.update(reader.last(2)),
    "SETITEMS": lambda reader: reader.update(reader.items()),
    "TUPLE": lambda reader: reader.stack.append(tuple(reader.items())),
    "TUPLE1": lambda reader: reader.stack.append(tuple(reader.last(1))),
    "TUPLE2": lambda reader: reader.stack.append(tuple(reader.last(2))),
    "TUPLE3": lambda reader: reader.stack.append(tuple(reader.last(3))),
}
_IGNORED = frozenset({"PROTO", "FRAME"})
