"""Finds overrides that set a text where the files have a number: Hydra accepts `lr=abc` silently.

A text may be intended (`lr=auto`), and is only reported. One that begins like a number (`lr=0.1x`)
is a typo that would waste a queue slot and a run: it is refused unless it is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hydra.core.override_parser.types import OverrideType
from omegaconf import OmegaConf

from hpckit.config.failures import FAILURES
from hpckit.config.points.columns import KEY
from hpckit.config.points.word import Word
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session, open_session
from hpckit.config.staged import for_all, read_words
from hpckit.errors import ConfigError
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import is_number
from hpckit.planning.sweep.point_file import place
from hpckit.values import field_names

_TYPED = frozenset(field_names(LaunchConfig)) - {"params"}
"""Keys that hpckit reads itself: Hydra refuses other types there."""


_HALF_NUMBER = re.compile(r"[+-]?\.?[0-9]")


def texts_for_numbers(request: ComposeRequest) -> Iterator[tuple[str, float]]:
    """Yield each override that sets a text for a key that otherwise is a number, with that number.

    Raises ConfigError for a text that begins like a number.
    """
    if not any(_concerns_user(word) or word.startswith(f"{KEY}=") for word in request.overrides):
        return
    with open_session(request) as session:
        words = for_all(read_words(request, session))
        groups = session.groups()
        for word in words:
            override = word.override
            key = override.key_or_group
            if override.type is not OverrideType.CHANGE or key in groups or not _sets_text(word):
                continue
            number = _number_without(word, words, session) if _concerns_user(f"{key}=") else None
            if number is not None:
                _refuse_half_number(word, number)
                yield str(override.input_line), number


def _concerns_user(word: str) -> bool:
    key, _, values = word.partition("=")
    if "/" in key or key.partition(".")[0].lstrip("+~") in _TYPED:
        return False
    return not all(is_number(value) for value in values.split(","))


def _sets_text(word: Word) -> bool:
    if word.column is not None:
        return any(_is_text(text) for _, text in _given(word))
    if word.override.is_interval_sweep():
        return False  # draws numbers
    return any(isinstance(value, str) and "${" not in value for value in _values(word))


def _is_text(value: str) -> bool:
    """Whether a value in Hydra's grammar is a text: nothing else that the grammar knows."""
    other = value.lower() in {"null", "true", "false"} or value[:1] in {"[", "{"} or "${" in value
    return not (other or is_number(value))


def _given(word: Word) -> Iterator[tuple[str, str]]:
    """Yield each value of a word as text, after what an error calls it."""
    override, column = word.override, word.column
    if column is not None:
        for line, text in zip(column.lines, column.words, strict=True):
            if text is not None:
                yield f"{place(column.file, line)}: {text}", text.partition("=")[2]
        return
    yield from ((str(override.input_line), str(value)) for value in _values(word))


def _values(word: Word) -> list[object]:
    override = word.override
    return list(override.sweep_iterator()) if word.is_swept else [override.value()]


def _refuse_half_number(word: Word, number: float) -> None:
    key = word.override.key_or_group
    for given, text in _given(word):
        if _HALF_NUMBER.match(text) and not is_number(text) and not _is_quoted(given, text):
            raise ConfigError(
                f"{given}: {text!r} is not a number, and {key} is {number:g} without it.",
                hint=f"Write a number; if a text is meant: '{key}=\"{text}\"'",
            )


def _is_quoted(line: str, text: str) -> bool:
    return any(f"{quote}{text}{quote}" in line for quote in "'\"")


def _number_without(word: Word, words: Sequence[Word], session: Session) -> float | None:
    """Return the key's number from the files and the other overrides; None if it has none."""
    rest = [one for one in words if one is not word and not one.override.is_sweep_override()]
    others = [str(one.override.input_line) for one in rest]
    try:
        value = OmegaConf.select(session.load(others), word.override.key_or_group)
    except FAILURES:
        return None  # the error was already reported during composition
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else None
