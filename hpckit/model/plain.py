"""Conversion of dataclasses to plain JSON values and back.

Datetimes are ISO 8601 in UTC, durations are seconds, enums their value, tuples lists. Unknown keys
are ignored when reading, so that an older hpckit can read what a newer one wrote. A value of
another type than its field's is refused here, so that code that reads a record can trust it.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Reader = Callable[[Any], Any]

_PLAIN: frozenset[Any] = frozenset({str, int, float, bool, type(None)})
_LONGEST_SHOWN = 60


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


def without_nan(value: Any) -> Any:
    """Return plain JSON values with None in place of numbers that JSON lacks: NaN and infinite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


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
    """Build a dataclass from plain values.

    Raises TypeError or ValueError if a mandatory value is missing or a value has the wrong type.
    """
    if not isinstance(record, Mapping):
        raise TypeError(f"{kind.__name__} is {_shown(record)}, not an object")
    whole: Any = kind
    made: dict[str, Any] = {}
    for name, accepted, read in _readers(whole):
        if name in record:
            value = record[name]
            made[name] = value if type(value) in accepted else _read(name, read, value)
    return kind(**made)


def _read(name: str, read: _Reader, value: Any) -> Any:
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


@cache
def _readers(kind: Any) -> tuple[tuple[str, frozenset[Any], _Reader], ...]:
    """Return the fields of a dataclass, each with the types accepted unchanged and a reader."""
    hints = get_type_hints(kind)
    return tuple(
        (field.name, _accepted(hints[field.name]), _reader(hints[field.name]))
        for field in dataclasses.fields(kind)
    )


_AS_THEY_ARE: Mapping[Any, frozenset[Any]] = {
    Any: _PLAIN,
    float: frozenset({float, int}),
    **{one: frozenset({one}) for one in (str, int, bool, type(None))},
}


def _accepted(hint: Any) -> frozenset[Any]:
    """Return the types whose values need no reader; this makes reading fast."""
    if get_origin(hint) in (types.UnionType, Union):
        return frozenset(one for member in get_args(hint) for one in _accepted(member))
    return _AS_THEY_ARE.get(hint, frozenset())


def _reader(hint: Any) -> _Reader:
    origin, members = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return _reader_of_union(members)
    if origin is tuple:
        return _reader_of_tuple(members)
    if origin is list:
        of_item = _reader(members[0])
        return lambda value: [of_item(item) for item in _listed(value)]
    if isinstance(origin, type):
        of_value = _reader(members[1])
        return lambda value: {key: of_value(item) for key, item in _object(value).items()}
    return _reader_of_one(hint)


def _reader_of_union(members: tuple[Any, ...]) -> _Reader:
    others = [member for member in members if member is not type(None)]
    if len(others) == 1:
        read = _reader(others[0])
        return lambda value: None if value is None else read(value)
    # In a union of several types, only JSON's own types can be told apart.
    return _reader_of_some(frozenset(members), " or ".join(one.__name__ for one in others))


def _reader_of_tuple(members: tuple[Any, ...]) -> _Reader:
    if len(members) == 2 and members[1] is ...:  # noqa: PLR2004  # tuple[T, ...]
        one = _reader(members[0])
        return lambda value: tuple(map(one, _listed(value)))
    each = [_reader(member) for member in members]
    return lambda value: tuple(read(item) for read, item in zip(each, _listed(value), strict=True))


def _reader_of_one(hint: Any) -> _Reader:
    if hint is Any:
        return lambda value: value
    if dataclasses.is_dataclass(hint):
        return lambda value: from_plain(cast("Any", hint), value)
    if hint is datetime:
        return _moment
    if hint is timedelta:
        return _duration
    if issubclass(hint, Enum):
        return cast("_Reader", hint)
    accepted = _accepted(hint)
    return lambda value: _checked(value, hint, accepted)


def _checked(value: Any, hint: type, accepted: frozenset[Any]) -> Any:
    # A value of a subclass is accepted, such as a member of a StrEnum as text.
    if type(value) in accepted or (isinstance(value, hint) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{_shown(value)} is not {hint.__name__}")


def _reader_of_some(accepted: frozenset[Any], allowed: str) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) in accepted:
            return value
        raise TypeError(f"{_shown(value)} is not {allowed}")

    return read


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{_shown(value)} is not an object")
    return value


def _listed(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{_shown(value)} is not a list")
    return value


def _moment(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} does not say its time zone")
    return moment


def _duration(value: Any) -> timedelta:
    try:
        return timedelta(seconds=value)
    except OverflowError as error:
        raise ValueError(f"{_shown(value)} is too long") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
