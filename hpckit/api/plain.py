"""What Python programs hold as values, as a configuration holds them; it refuses what would be guessed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any

from hpckit.errors import UsageError
from hpckit.planning.sweep.points import MAX_POINTS

_SCALARS = (bool, int, float, str, type(None))
_MOST_DIGITS = 4000
"""Python converts no longer whole numbers to text by itself."""

_POINTS = "give a list of mappings, one for each run: points=[{'lr': 0.1}, {'lr': 0.2}]"


def make_plain_points(points: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the points of a sweep, at most one more than a launch may have; raises UsageError."""
    if isinstance(points, str | bytes | Mapping) or not isinstance(points, Iterable):
        raise UsageError(f"points is {points!r}", hint=_POINTS)
    if hasattr(points, "to_dict"):
        raise UsageError("points is a data frame", hint="points=frame.to_dict('records')")
    numbered = enumerate(islice(points, MAX_POINTS + 1))
    return tuple(make_plain_mapping(point, f"points[{number}]") for number, point in numbered)


def make_plain_mapping(value: Any, what: str) -> dict[str, Any]:
    """Return a mapping of keys to plain values; raises UsageError, naming the key."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} is {value!r}; it must be a mapping of keys to values", hint=_POINTS)
    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"{what} has the key {key!r}; keys are texts", hint="such as 'optimizer.lr'")
    try:
        return {key: _make_plain(one, key) for key, one in value.items()}
    except RecursionError:
        raise UsageError(f"{what} contains itself, or is nested too deeply") from None


def make_plain_command(command: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the words of a command; raises UsageError."""
    if isinstance(command, str | bytes):
        hint = "give its words: command=['python', 'train.py'], or shlex.split(text)"
        raise UsageError(f"command is the one text {command!r}", hint=hint)
    words: list[Any] = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    for word in words:
        if type(word) not in (str, int, float):
            raise UsageError(f"command has the word {word!r}; words are texts, numbers and paths")
    return tuple(map(str, words))


def _make_plain(value: Any, key: str) -> Any:
    value = value.value if isinstance(value, Enum) else value
    if type(value) in _SCALARS:
        if type(value) is int and value.bit_length() > 3 * _MOST_DIGITS:
            raise UsageError(f"{key} is a whole number of more than {_MOST_DIGITS} digits")
        return value
    if hasattr(value, "tolist"):  # scalars and arrays of numpy, tensors
        return _make_plain(value.tolist(), key)
    if isinstance(value, Mapping):
        return {_make_plain(inner, key): _make_plain(one, f"{key}.{inner}") for inner, one in value.items()}
    if isinstance(value, list | tuple):
        return [_make_plain(one, key) for one in value]
    converters: tuple[tuple[type, Callable[[Any], Any]], ...] = (
        (os.PathLike, os.fspath),
        (int, int),
        (float, float),
        (str, str),
    )
    for kind, convert in converters:
        if isinstance(value, kind):  # the last three are subclasses
            return convert(value)
    raise UsageError(
        f"the value of {key} is {value!r}, of type {type(value).__name__}, which no configuration can hold",
        hint="give numbers, texts, booleans, None, paths, or lists and mappings of these",
    )
