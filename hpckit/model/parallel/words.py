"""Overrides of a run that continues: which there are, and how later ones replace earlier ones."""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.patterns import lazy_pattern

_GROUP = "parallel"
_WORD = lazy_pattern(r"[+~]{0,2}[A-Za-z_$][\w.@/$]*=")


def is_override(word: str) -> bool:
    """Whether a word has the form of an override: `seed=1`, `parallel=tensor`, `+x.y=2`."""
    return _WORD.match(word) is not None


def is_layout_word(word: str) -> bool:
    """Whether an override chooses a layout, or sets a key of it: `parallel.shard=2`."""
    key, equals, _ = word.partition("=")
    return bool(equals) and (key == _GROUP or key.startswith(f"{_GROUP}."))


def with_layout_words(overrides: Iterable[str], words: Iterable[str]) -> tuple[str, ...]:
    """Return the overrides of a run after these words: they replace what they make void.

    Example: `seed=1 parallel.shard=2` with `parallel=tensor` is `seed=1 parallel=tensor`.
    """
    found = list(overrides)
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        found = [word_before for word_before in found if not _is_void(word_before, key)] + [word]
    return tuple(found)


def _is_void(override: str, key: str) -> bool:
    own = override.partition("=")[0].lstrip("+")
    return own == key or (key == _GROUP and is_layout_word(override.lstrip("+")))
