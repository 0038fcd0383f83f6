"""Describes in words what values hpckit's own keys take."""

from __future__ import annotations

import dataclasses
from enum import EnumType
from typing import Any, get_args, get_origin, get_type_hints

from hpckit.config.schema import typed_sections
from hpckit.model.launch import LaunchConfig

_UNITS = {
    "_min": ": minutes, a day is 1440",
    "_s": ": seconds",
    "_hours": ": hours",
    "_gb": ": gigabytes",
    "_mb": ": megabytes",
}
"""The unit of a number, by the end of its key."""


_OF_TEXTS = ("env.", "cluster.env.", "resources.additional_parameters.")
"""Keys below these take text."""

_FORMS = {"sweep.zip": "groups of keys that advance together, such as [[lr,batch]]"}
"""What a key takes, if its type says too little."""


def known_in(section: str) -> tuple[str, ...]:
    """Return the keys of one of hpckit's sections; empty for others."""
    kind = typed_sections().get(section)
    return () if kind is None else tuple(field.name for field in dataclasses.fields(kind))


def takes(key: str) -> str:
    """Return what a key of hpckit takes, as a sentence; unknown for a user's own keys."""
    section, _, name = key.rpartition(".")
    kind = typed_sections().get(section) if section else LaunchConfig
    hints = get_type_hints(kind) if kind is not None else {}
    if name not in hints:
        return "See --cfg for what it is now."
    return f"{key} takes {_FORMS.get(key) or _words(hints[name], key)}{_unit(name)}."


def is_text(key: str) -> bool:
    """Return whether a key of hpckit takes one text, in which a comma has no special meaning."""
    if key.startswith(_OF_TEXTS):
        return True
    return _hint(key) in (str, str | None) or key == "command"


def is_scalar(key: str) -> bool:
    """Return whether a key of hpckit takes one value that is not a list."""
    hint = _hint(key)
    return hint is not None and not any(
        kind in (Any, list, dict) or get_origin(kind) in (list, dict)
        for kind in (hint, *get_args(hint))
    )


def _hint(key: str) -> Any:
    section, _, name = key.rpartition(".")
    kind = typed_sections().get(section) if section else LaunchConfig
    return get_type_hints(kind).get(name) if kind is not None else None


def _unit(name: str) -> str:
    return next((words for ending, words in _UNITS.items() if name.endswith(ending)), "")


def _words(hint: Any, key: str) -> str:
    if isinstance(hint, EnumType):
        return f"one of {', '.join(hint.__members__)}"
    if dataclasses.is_dataclass(hint):
        return f"a mapping of {', '.join(known_in(key))}"
    return hint.__name__ if type(hint) is type else str(hint).replace("typing.", "")
