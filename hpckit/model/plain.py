"""Dataclasses to plain JSON values and back.

Responsible for one rule of translation; it must not know any particular type's meaning.
Datetimes are ISO 8601 in UTC, durations are seconds, enums their value, tuples lists. Unknown
keys are left out when reading, so that an older hpckit can read what a newer one wrote.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_PLAIN = frozenset({str, int, float, bool, type(None)})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists, strings, numbers, booleans and None."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return _scalar(value)


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
    hints = _hints(whole)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: _build(hints[name], record[name]) for name in names if name in record})


def _build(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        members = [member for member in get_args(hint) if member is not type(None)]
        return value if value is None or len(members) != 1 else _build(members[0], value)
    if origin is tuple:
        return _tuple(get_args(hint), value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_plain(hint, value)
    return _build_scalar(hint, value)


def _tuple(members: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if len(members) == 2 and members[1] is ...:  # noqa: PLR2004  # tuple[T, ...]
        return tuple(_build(members[0], item) for item in value)
    return tuple(_build(member, item) for member, item in zip(members, value, strict=True))


def _build_scalar(hint: Any, value: Any) -> Any:
    if hint is datetime:
        return datetime.fromisoformat(value)
    if hint is timedelta:
        return timedelta(seconds=value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return value
