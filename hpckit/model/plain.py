"""Conversion of dataclasses to plain JSON values and back.

Datetimes are ISO 8601 in UTC, durations are seconds, enums their value, tuples lists, paths texts. Unknown
keys are ignored when reading, so that an older hpckit can read what a newer one wrote. A value of another
type than its field's is refused here, so that code that reads a record can trust it. So is a number that
nothing measures or counts: NaN, infinity, a whole number beyond 64 bits, and in a field of seconds (`_s`)
more than a thousand years. JSON has all of them.
"""

from __future__ import annotations

import math
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hpckit.values import field_names, is_dataclass

T = TypeVar("T")
_Reader = Callable[[Any], Any]

_EARLIEST, _LATEST = 1970, 9998
"""Years of times that are read."""
_PLAIN: frozenset[Any] = frozenset({str, int, float, bool, type(None)})
_LONGEST_SHOWN = 60

MASK = "***"
"""Replaces a secret in a configuration or an override."""

LARGEST = 2**63 - 1
"""The largest whole number that a record may have: what 64 bits hold."""

LONGEST_S = 3.2e10
"""The longest time that a record may have, in seconds: a thousand years."""
_RATES = ("bytes_s", "_per_s")
"""Endings of the names of rates, which are no times: a GPU copies 4e12 bytes a second."""

_LARGEST_FLOAT = sys.float_info.max
_NUMBERS = frozenset({int, float})


def is_within_limit(value: float, most: float = _LARGEST_FLOAT) -> bool:
    """Whether a number is between -most and most: not NaN, and by default what a float can hold.

    `math.isfinite` fails for whole numbers that no float can hold; this does not.
    """
    return -most <= value <= most


def finite_float_or_none(value: object) -> float | None:
    """Return a number of a record as one that can be computed with; None for all else."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and is_within_limit(value) else None  # type: ignore[arg-type]


def is_number_text(text: str) -> bool:
    """Return whether a text is a number as Python writes it, such as `-1e3` or `inf`."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_same_repr(one: Any, other: Any) -> bool:
    """Return whether both are written the same: 1, 1.0 and True compare equal, but differ."""
    return repr(one) == repr(other)


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists, strings, numbers, booleans and None."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if (names := _dataclass_field_names(kind)) is not None:
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return _scalar_to_json(value)


def iterate_leaf_values(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a nested mapping that is not a mapping, with its dotted key."""
    if not isinstance(values, Mapping):
        yield path, values
        return
    for key, value in values.items():
        yield from iterate_leaf_values(value, f"{path}.{key}".lstrip("."))


def iterate_config_strings(value: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every text of a configuration with the parts of its key; items have their list's."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from iterate_config_strings(inner, (*key, str(name)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from iterate_config_strings(inner, key)


def attributes_to_json(value: Any, *names: str) -> dict[str, Any]:
    """Return attributes of `value` as JSON values; each text has one or more names.

    `run bytes=size memory=gpu.memory` renames two. An attribute of None is null.
    """
    pairs = (name.partition("=") for text in names for name in text.split())
    return {name: to_plain(_follow_attribute_path(value, path or name)) for name, _, path in pairs}


def _follow_attribute_path(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def replace_nan_with_null(value: Any) -> Any:
    """Return plain JSON values with None in place of numbers that JSON lacks: NaN and infinite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: replace_nan_with_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nan_with_null(item) for item in value]
    return value


@cache
def _dataclass_field_names(kind: Any) -> tuple[str, ...] | None:
    return field_names(kind) if is_dataclass(kind) else None


def _scalar_to_json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, timedelta):
        return value.total_seconds()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def from_plain(kind: type[T], record: Mapping[str, Any]) -> T:
    """Build a dataclass from plain values.

    Raises TypeError or ValueError if a mandatory value is missing or a value has the wrong type.
    """
    if not isinstance(record, Mapping):
        raise TypeError(f"{kind.__name__} is {_shorten_repr(record)}, not an object")
    whole: Any = kind
    made: dict[str, Any] = {}
    for name, accepted, most, read in _build_field_readers(whole):
        if name in record:
            value = record[name]
            if type(value) not in accepted:
                made[name] = _convert_field_value(name, read, value)
            elif most is None or type(value) not in _NUMBERS or -most <= value <= most:
                made[name] = value
            else:
                raise ValueError(f"{name}: {_shorten_repr(value)} is out of range")
    return kind(**made)


def _convert_field_value(name: str, read: _Reader, value: Any) -> Any:
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


@cache
def _build_field_readers(kind: Any) -> tuple[tuple[str, frozenset[Any], float | None, _Reader], ...]:
    """Return the fields of a dataclass: the types accepted unchanged, the largest number, a reader.

    The largest number is null for a field that holds none, or anything.
    """
    hints = get_type_hints(kind)
    return tuple(_build_field_reader(name, hints[name]) for name in field_names(kind))


def _build_field_reader(name: str, hint: Any) -> tuple[str, frozenset[Any], float | None, _Reader]:
    accepted = _types_accepted_unchanged(hint)
    return (
        name,
        accepted,
        None if hint is Any else _largest_allowed_number(accepted, name),
        _build_value_reader(hint),
    )


def _largest_allowed_number(accepted: frozenset[Any], name: str = "") -> float | None:
    if float in accepted:
        is_time = name.endswith("_s") and not name.endswith(_RATES)
        return LONGEST_S if is_time else _LARGEST_FLOAT
    return LARGEST if int in accepted else None


_AS_THEY_ARE: Mapping[Any, frozenset[Any]] = {
    Any: _PLAIN,
    float: frozenset({float, int}),
    **{kind: frozenset({kind}) for kind in (str, int, bool, type(None))},
}


def _types_accepted_unchanged(hint: Any) -> frozenset[Any]:
    """Return the types whose values need no reader; this makes reading fast."""
    if get_origin(hint) in (types.UnionType, Union):
        return frozenset(one for member in get_args(hint) for one in _types_accepted_unchanged(member))
    return _AS_THEY_ARE.get(hint, frozenset())


def _build_value_reader(hint: Any) -> _Reader:
    origin, members = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return _build_union_reader(members)
    if origin is tuple:
        return _build_tuple_reader(members)
    if origin is list:
        of_item = _build_value_reader(members[0])
        return lambda value: [of_item(item) for item in _check_list(value)]
    if isinstance(origin, type):
        of_value = _build_value_reader(members[1])
        return lambda value: {key: of_value(item) for key, item in _check_mapping(value).items()}
    return _build_single_type_reader(hint)


def _build_union_reader(members: tuple[Any, ...]) -> _Reader:
    others = [member for member in members if member is not type(None)]
    if len(others) == 1:
        read = _build_value_reader(others[0])
        return lambda value: None if value is None else read(value)
    # In a union of several types, only JSON's own types can be told apart.
    allowed = " or ".join(other.__name__ for other in others)
    return _build_any_of_reader(frozenset(members), allowed)


def _build_tuple_reader(members: tuple[Any, ...]) -> _Reader:
    if len(members) == 2 and members[1] is ...:  # noqa: PLR2004  # tuple[T, ...]
        one = _build_value_reader(members[0])
        return lambda value: tuple(map(one, _check_list(value)))
    each = [_build_value_reader(member) for member in members]
    return lambda value: tuple(read(item) for read, item in zip(each, _check_list(value), strict=True))


def _build_single_type_reader(hint: Any) -> _Reader:
    if hint is Any:
        return lambda value: value
    if is_dataclass(hint):
        return lambda value: from_plain(cast("Any", hint), value)
    if hint is datetime:
        return _parse_recorded_time
    if hint is timedelta:
        return _seconds_to_duration
    if issubclass(hint, Enum):
        return cast("_Reader", hint)
    accepted = _types_accepted_unchanged(hint)
    most = _largest_allowed_number(accepted)
    return lambda value: _check_number_range(_check_value_type(value, hint, accepted), most)


def _check_value_type(value: Any, hint: type, accepted: frozenset[Any]) -> Any:
    # A value of a subclass is accepted, such as a member of a StrEnum as text.
    if type(value) in accepted or (isinstance(value, hint) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{_shorten_repr(value)} is not {hint.__name__}")


def _build_any_of_reader(accepted: frozenset[Any], allowed: str) -> _Reader:
    most = _largest_allowed_number(accepted)

    def read(value: Any) -> Any:
        if type(value) in accepted:
            return _check_number_range(value, most)
        raise TypeError(f"{_shorten_repr(value)} is not {allowed}")

    return read


def _check_number_range(value: Any, most: float | None) -> Any:
    if most is not None and type(value) in _NUMBERS and not is_within_limit(value, most):
        raise ValueError(f"{_shorten_repr(value)} is out of range")
    return value


def _check_mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{_shorten_repr(value)} is not an object")
    return value


def _check_list(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{_shorten_repr(value)} is not a list")
    return value


def _parse_recorded_time(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    if not _EARLIEST <= moment.year <= _LATEST:  # in another zone it may be no time at all
        raise ValueError(f"{value!r} is not a valid time of a run")
    return moment


def _seconds_to_duration(value: Any) -> timedelta:
    if not is_within_limit(value, LONGEST_S):
        raise ValueError(f"{_shorten_repr(value)} is too long")
    return timedelta(seconds=value)


def _shorten_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
