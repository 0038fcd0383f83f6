"""Describes in words what values hpckit's own keys take."""

from __future__ import annotations

import re
from enum import EnumType
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from hpckit.model.launch import LaunchConfig
from hpckit.model.moment import UNIT_SECONDS, parse_time_limit
from hpckit.model.parallel.settings import SCHEDULES, SIZE_WORDS
from hpckit.patterns import lazy_pattern
from hpckit.values import field_names, is_dataclass

_UNITS = {
    "_min": ": minutes, a day is 1440, or 2h",
    "_s": ": seconds",
    "_hours": ": hours",
    "_gb": ": gigabytes, or 512MB",
    "_mb": ": megabytes",
}
"""The unit of a number, by the end of its key."""

_TIMES = UNIT_SECONDS | {"sec": 1, "m": 60}
_SIZES = {"m": 2**20, "g": 2**30, "t": 2**40}
_UNIT_OF = {"_min": (_TIMES, 60), "_s": (_TIMES, 1), "_gb": (_SIZES, 2**30), "_mb": (_SIZES, 2**20)}
_WITH_UNIT = lazy_pattern(r"(\d+(?:\.\d+)?)([a-z]+?)i?b?", re.IGNORECASE)

_ONE = {
    str: "a text",
    int: "a whole number, such as 2",
    float: "a number, such as 1.5",
    bool: "true or false",
}
_MANY = {str: "texts", int: "whole numbers", Any: "values"}

OPEN = ("env", "cluster.env", "resources.additional_parameters")
"""Sections whose keys are the user's; each takes text."""

_FORMS = {
    "command": "a program and its words, as a list or as one text",
    "stages": "a mapping of names to stages",
    "sweep.zip": "groups of keys that advance together, such as [[lr,batch]]",
    "parallel.fallback": "a list of layouts, such as [{replicate:1,shard:rest}]",
    "parallel.schedule": f"one of {', '.join(SCHEDULES)}",
    **{
        f"parallel.{axis}": " or ".join(["a whole number of 1 or more", *sorted(words)])
        for axis, words in SIZE_WORDS.items()
    },
}
"""What a key takes, if its type says too little."""


def known_in(section: str) -> tuple[str, ...]:
    """Return the keys of one of hpckit's sections; empty for others."""
    kind = _hint(section)
    return field_names(kind) if is_dataclass(kind) else ()


def takes(key: str) -> str:
    """Return what a key of hpckit takes, as a sentence; unknown for a user's own keys."""
    hint = _hint(key)
    if hint is None:
        return "Without it, --cfg shows the configuration."
    unit = next((words for ending, words in _UNITS.items() if key.endswith(ending)), "")
    return f"{key} takes {_FORMS.get(key) or _words(hint, key)}{unit}."


def is_text(key: str) -> bool:
    """Return whether a key of hpckit takes one text, in which a comma has no special meaning."""
    if key.startswith(tuple(f"{name}." for name in OPEN)):
        return True
    return _hint(key) in (str, str | None) or key == "command"


def is_scalar(key: str) -> bool:
    """Return whether a key of hpckit takes one value that is not a list."""
    hint = _hint(key)
    return hint is not None and not any(
        kind in (Any, list, dict) or get_origin(kind) in (list, dict)
        for kind in (hint, *get_args(hint))
    )


def takes_decimals(key: str) -> bool:
    """Return whether a key of hpckit takes one number that need not be whole."""
    hint = _hint(key)
    return hint is not None and float in (hint, *get_args(hint))


@cache
def reads_text(key: str) -> bool | None:
    """Return whether a key of hpckit takes a text; None if neither texts nor numbers are taken.

    Items of lists and mappings are keys, too: `cluster.modules.0`.
    """
    kinds = {_hint(key), *get_args(_hint(key))}
    if {int, float} & kinds:
        return False
    return True if is_text(key) or key.startswith("command.") else None


def in_unit_of(name: str, text: str, *, whole: bool) -> str:
    """Return a text with a unit as a number of its key's: of `2h` for `timeout_min` `120`.

    Other text is returned as it is.
    """
    units, own = next((one for end, one in _UNIT_OF.items() if name.endswith(end)), ({}, 1))
    found = _WITH_UNIT.fullmatch(text.strip())
    clock = parse_time_limit(text) if units is _TIMES else None
    amount = clock.total_seconds() if clock else 0.0
    if found is not None:
        amount = float(found[1]) * units.get(found[2].lower(), 0)
    if not amount:
        return text
    number = amount / own
    return text if whole and number % 1 else f"{number:.15g}"


def _hint(key: str) -> Any:
    """Return the type of a key, or of an item of a list or mapping; None for a user's own."""
    kind: Any = LaunchConfig
    for part in key.split("."):
        if is_dataclass(kind):
            kind = get_type_hints(kind).get(part)
        else:
            inner = get_args(kind)[-1] if get_origin(kind) in (list, dict) else Any
            kind = None if inner is Any else inner
    return kind


def _words(hint: Any, key: str) -> str:
    """Return what values of a type are in words, without Python's names for types."""
    inner = get_args(hint)
    if type(None) in inner:
        (kind,) = (type_ for type_ in inner if type_ is not type(None))
        return f"{_words(kind, key)}, or null"
    if get_origin(hint) is list:
        return f"a list of {_several(inner[0])}"
    if get_origin(hint) is dict:
        return f"a mapping of names to {_several(inner[1])}"
    if isinstance(hint, EnumType):
        return f"one of {', '.join(hint.__members__)}"
    if is_dataclass(hint):
        return f"a mapping of {', '.join(known_in(key))}"
    return _ONE[hint]


def _several(kind: Any) -> str:
    if isinstance(kind, EnumType):
        return f"these: {', '.join(kind.__members__)}"
    return _MANY[kind]
