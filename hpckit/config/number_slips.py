"""Words that set a text where the files have a number: Hydra takes `lr=abc` without a word.

Responsible for finding them; it must not refuse any, since a text may be meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import OmegaConf

from hpckit.config.failures import FAILURES
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session, open_session
from hpckit.config.staged import for_all, read_words
from hpckit.model.launch import LaunchConfig

_TYPED = frozenset(field.name for field in fields(LaunchConfig)) - {"params"}
"""What hpckit reads itself: there Hydra refuses another type."""


def texts_for_numbers(request: ComposeRequest) -> Iterator[tuple[str, float]]:
    """Yield each word that gives a text to a key that is a number without it, and that number."""
    if not any(_concerns_user(word) for word in request.overrides):
        return
    with open_session(request) as session:
        words = tuple(word.override for word in for_all(read_words(request, session)))
        groups = session.groups()
        for word in words:
            key = word.key_or_group
            if word.type is not OverrideType.CHANGE or key in groups or not _sets_text(word):
                continue
            number = _number_without(word, words, session) if _concerns_user(f"{key}=") else None
            if number is not None:
                yield str(word.input_line), number


def _concerns_user(word: str) -> bool:
    key, _, values = word.partition("=")
    if "/" in key or key.partition(".")[0].lstrip("+~") in _TYPED:
        return False
    return not all(_is_number(value) for value in values.split(","))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _sets_text(word: Override) -> bool:
    if word.is_interval_sweep():
        return False  # draws numbers
    values = list(word.sweep_iterator()) if word.is_sweep_override() else [word.value()]
    return any(isinstance(value, str) and "${" not in value for value in values)


def _number_without(word: Override, words: tuple[Override, ...], session: Session) -> float | None:
    """Return the number that the key has by the files and the other words, None if it has none."""
    rest = [one for one in words if one is not word and not one.is_sweep_override()]
    others = [str(one.input_line) for one in rest]
    try:
        value = OmegaConf.select(session.load(others), word.key_or_group)
    except FAILURES:
        return None  # what is wrong there was said when it was composed
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else None
