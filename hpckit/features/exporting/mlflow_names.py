"""The names under which MLflow stores keys: those that it allows, another one for each key. Pure.

A name depends on the keys of its run alone, so that every export of a run has the same names.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping

_LONGEST = 250
_DIGITS = 8
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_. :/-]")
_NO_PART = frozenset({"", ".", ".."})


def mlflow_names(keys: Collection[str]) -> Mapping[str, str]:
    """Return the name of each key: the key itself, or one in the letters that MLflow allows.

    Keys whose names would be the same or too long have some letters of a digest at their end.
    """
    names = {key: _allowed(key) for key in keys}
    numbers = Counter(names.values())
    return {
        key: _with_digest(name, key)
        if len(name) > _LONGEST or (numbers[name] > 1 and name != key)
        else name
        for key, name in names.items()
    }


def _allowed(key: str) -> str:
    """Return a key in allowed letters; MLflow takes it for a path, which has to be the shortest."""
    parts = _NOT_ALLOWED.sub("_", key).split("/")
    name = "/".join("_" if part in _NO_PART else part for part in parts)
    return f"_{name[1:]}" if name.startswith("..") else name


def _with_digest(name: str, key: str) -> str:
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    return f"{name[: _LONGEST - _DIGITS - 1]}_{digest}"
