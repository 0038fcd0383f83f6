"""Finds keys that look like mistyped keys of hpckit.

`+key=value` adds a key of the user's own at the root, whatever its name: `+resource.nodes=2` would
compose without error, and have no effect. `++key=value` adds it anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType

from hpckit.config.failures import FAILURES
from hpckit.config.session import Session
from hpckit.errors import ConfigError
from hpckit.model.launch import LaunchConfig, Resources
from hpckit.values import field_names

_ROOT = (*field_names(LaunchConfig), "experiment")
_RESOURCES = frozenset(field_names(Resources))
_ALIKE = 0.84
"""`recovry`, `param`, `clustr` are above it, `mode` and `node` (for `code`) are not."""
_SHORT = 4
"""Names this short are similar to many unrelated words: `speed` is not a typo of `seed`."""


def meant_by(key: str) -> str | None:
    """Return the key that an added one was probably meant to be; None if it is not a typo."""
    root, dot, rest = key.partition(".")
    if root in _ROOT:
        return None
    if root in _RESOURCES and not dot:
        return f"resources.{root}"
    near = [(_likeness(root, name), name) for name in _ROOT if _is_near(root, name)]
    return f"{max(near)[1]}{dot}{rest}" if near else None


def slips(config: Mapping[str, Any], words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield root keys of a composed configuration that hpckit does not read, and what was meant.

    A file may contain the user's own keys, so only likely typos are reported: a misspelt name of
    hpckit's, or a compound one that belongs in `resources`. Keys forced on the command line
    (`++key`) are skipped.
    """
    forced = {word.lstrip("+").partition("=")[0] for word in words if word.startswith("++")}
    for key in config.keys() - {one.partition(".")[0] for one in forced}:
        meant = meant_by(key)
        if meant is not None and ("_" in key or key not in _RESOURCES):
            yield key, meant


def refuse_near_misses(session: Session, words: Sequence[Override]) -> None:
    """Raise ConfigError for the first override that adds a key that must be a typo.

    A key that exists in the user's own files is not a typo.
    """
    for word in words:
        key = word.key_or_group
        meant = meant_by(key) if word.type is OverrideType.ADD and "/" not in key else None
        if meant is None or word.package is not None or _exists(session, word, words):
            continue
        line = str(word.input_line)
        raise ConfigError(
            f"{line} adds a key that hpckit does not read. Did you mean {meant}?",
            hint=f"Write {meant}=..., or ++{line.lstrip('+')} for a key of your own by that name.",
        )


def _exists(session: Session, word: Override, words: Sequence[Override]) -> bool:
    """Return whether the files have the key's root, or the override selects from a group."""
    if word.key_or_group in session.groups():
        return True
    others = [str(other.input_line) for other in words if other is not word]
    try:
        files = session.load([line for line in others if not line.startswith("+")])
    except FAILURES:
        return True  # the error is reported during composition
    return word.key_or_group.partition(".")[0] in files


def _is_near(root: str, name: str) -> bool:
    if len(name) <= _SHORT:
        return sorted(root) == sorted(name) or root == f"{name}s"
    return _likeness(root, name) >= _ALIKE


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.lower(), other).ratio()
