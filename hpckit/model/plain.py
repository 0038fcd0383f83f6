"""Dataclasses to plain JSON values and back.

Responsible for one rule of translation; it must not know any particular type's meaning.
Datetimes are ISO 8601 in UTC, durations are seconds, enums their value, tuples lists. Unknown
keys are left out when reading, so that an older hpckit can read what a newer one wrote.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Reader = Callable[[Any], Any]

_PLAIN = frozenset({str, int, float, bool, type(None)})


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists, strings, numbers, booleans and None."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return _scalar(value)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _scalar(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value


def from_plain(kind: type[T], record: Mapping[str, Any]) -> T:
    """Build a dataclass from plain values; raises TypeError where a mandatory one is missing."""
    whole: Any = kind
    return kind(
        **{
            name: record[name] if read is None else read(record[name])
            for name, read in _readers(whole)
            if name in record
        }
    )


@cache
def _readers(kind: Any) -> tuple[tuple[str, _Reader | None], ...]:
    """Return the fields of a dataclass and how each is read, None where it is taken as it is."""
    hints = get_type_hints(kind)
    return tuple((field.name, _reader(hints[field.name])) for field in dataclasses.fields(kind))


def _reader(hint: Any) -> _Reader | None:
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        members = [member for member in get_args(hint) if member is not type(None)]
        one = _reader(members[0]) if len(members) == 1 else None
        return None if one is None else lambda value: None if value is None else one(value)
    if origin is tuple:
        return _reader_of_tuple(get_args(hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return lambda value: from_plain(hint, value)
    return _reader_of_scalar(hint)


def _reader_of_tuple(members: tuple[Any, ...]) -> _Reader:
    if len(members) == 2 and members[1] is ...:  # noqa: PLR2004  # tuple[T, ...]
        one = _reader(members[0])
        return tuple if one is None else lambda value: tuple(map(one, value))
    each = [_reader(member) for member in members]
    return lambda value: tuple(
        item if read is None else read(item) for read, item in zip(each, value, strict=True)
    )


def _reader_of_scalar(hint: Any) -> _Reader | None:
    if hint is datetime:
        return datetime.fromisoformat
    if hint is timedelta:
        return lambda value: timedelta(seconds=value)
    return hint if isinstance(hint, type) and issubclass(hint, Enum) else None
