"""Finds overrides that set a text where the files have a number: Hydra accepts `lr=abc` silently.

A text may be intended (`lr=auto`), and is only reported. One that begins like a number (`lr=0.1x`)
is a typo that would waste a queue slot and a run: it is refused unless it is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import OmegaConf

from hpckit.config.failures import FAILURES
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session, open_session
from hpckit.config.staged import for_all, read_words
from hpckit.errors import ConfigError
from hpckit.model.launch import LaunchConfig

_TYPED = frozenset(field.name for field in fields(LaunchConfig)) - {"params"}
"""Keys that hpckit reads itself: Hydra refuses other types there."""


_HALF_NUMBER = re.compile(r"[+-]?\.?[0-9]")


def texts_for_numbers(request: ComposeRequest) -> Iterator[tuple[str, float]]:
    """Yield each override that sets a text for a key that otherwise is a number, with that number.

    Raises ConfigError for a text that begins like a number.
    """
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
                _refuse_half_number(word, number)
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


def _refuse_half_number(word: Override, number: float) -> None:
    values = list(word.sweep_iterator()) if word.is_sweep_override() else [word.value()]
    line = str(word.input_line)
    for value in values:
        text = str(value)
        if _HALF_NUMBER.match(text) and not _is_number(text) and not _is_quoted(line, text):
            raise ConfigError(
                f"{line}: {text!r} is not a number, and {word.key_or_group} is {number:g} without "
                "it.",
                hint=f"Write a number; if a text is meant: '{word.key_or_group}=\"{text}\"'",
            )


def _is_quoted(line: str, text: str) -> bool:
    return any(f"{quote}{text}{quote}" in line for quote in "'\"")


def _number_without(word: Override, words: tuple[Override, ...], session: Session) -> float | None:
    """Return the key's number from the files and the other overrides; None if it has none."""
    rest = [one for one in words if one is not word and not one.is_sweep_override()]
    others = [str(one.input_line) for one in rest]
    try:
        value = OmegaConf.select(session.load(others), word.key_or_group)
    except FAILURES:
        return None  # the error was already reported during composition
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else None
