"""Finds words and settings in files that the user may not have meant.

`+key=value` adds a key of the user's own at the root, whatever its name: `+resource.nodes=2` would compose
without error, and have no effect. `++key=value` adds it anyway. Hydra accepts a text for a number (`lr=abc`)
silently. It may be intended (`lr=auto`), and is only reported; one that begins like a number (`lr=0.1x`) is a
typo that would waste a queue slot and a run: it is refused unless it is quoted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import OmegaConf

from hpckit.config.failures import FAILURES
from hpckit.config.names import RESOURCES, guess_intended_key
from hpckit.config.points import KEY, Word
from hpckit.config.primary import choose_primary_config, list_keys_overridden_by_hpckit
from hpckit.config.request import ComposeRequest, list_conf_folders
from hpckit.config.session import Session, open_hydra_session
from hpckit.config.staged import parse_override_words, words_for_all_stages
from hpckit.errors import ConfigError
from hpckit.model.finding import Finding, build_warning_finding
from hpckit.model.launch import LaunchConfig
from hpckit.model.node_setup import has_data_settings
from hpckit.model.plain import is_number_text
from hpckit.model.plan import SweepPoint
from hpckit.patterns import lazy_pattern
from hpckit.planning.masking import find_keys_exposing_secrets
from hpckit.planning.sweep.point_file import format_line_position
from hpckit.values import field_names

_TYPED = frozenset(field_names(LaunchConfig)) - {"params"}
"""Keys that hpckit reads itself: Hydra refuses other types there."""

_HALF_NUMBER = lazy_pattern(r"[+-]?\.?[0-9]")


def warn_about_suspicious_input(request: ComposeRequest, points: Sequence[SweepPoint]) -> Iterator[Finding]:
    """Yield what the user may not have meant in words and files, once all is composed."""
    for key, meant in sorted(find_misspelt_root_keys(points[0].config, request.overrides)):
        words = f"hpckit does not read {key}, which your files set; did you mean {meant}?"
        yield build_warning_finding(key, points[0].config[key], words)
    folders = list_conf_folders(request)
    for key, file in list_keys_overridden_by_hpckit(folders, choose_primary_config(request, folders)):
        if key in _TYPED:
            words = f"{file} sets {key}, but hpckit's {key} wins: put `hpckit` first in the "
            yield build_warning_finding(key, points[0].config[key], words + "defaults list")
    for word, number in find_texts_set_for_number_keys(request):
        words = f"{word} is a text; without it the value is the number {number:g}"
        key, _, value = word.partition("=")
        yield build_warning_finding(key, value, words)
    section = points[0].config.get("data")
    sources = [*_list_sources(section)] if not has_data_settings(points[0].config) else []
    if sources:
        words = f"data.{sources[0]} brings nothing to nodes without the group: give data=stage, or in a file "
        yield build_warning_finding(f"data.{sources[0]}", "", words + "`- /data: stage` in its defaults")
    if request.multirun and request.points is None and len(points) == 1 and points[0].search is None:
        words = "-m makes a sweep, but no word has several values (lr=0.1,0.2): this is one run"
        yield build_warning_finding("-m", "", words)
    for key in find_keys_exposing_secrets(points[0]):
        yield build_warning_finding(
            key, "", f"{key} has a copy of a secret variable, which is not masked there"
        )
    yield from _warn_about_types_lost_in_json(points)


def _list_sources(section: object) -> Iterator[str]:
    """Yield the keys of a section that name what to bring to or from nodes, as only hpckit's has them."""
    if not isinstance(section, Mapping):
        return
    for key in ("stage", "out"):
        held = section.get(key)
        for name, item in held.items() if isinstance(held, Mapping) else ():
            if isinstance(item, Mapping) and "source" in item:
                yield f"{key}.{name}"


def _warn_about_types_lost_in_json(points: Sequence[SweepPoint]) -> Iterator[Finding]:
    """Yield which values a function gets as texts, as runs read JSON: `==` is False without a word.

    A program with Hydra's own `main` composes by itself, and has them as they are.
    """
    lost: dict[str, object] = {}
    for point in points:
        lost |= {} if point.settings.entry_point is None else point.lost
    for key, value in lost.items():
        root, *inner = key.split(".")
        if root in _TYPED:
            continue
        typed, of = (value[0], f"a key of {key}") if isinstance(value, list) else (value, key)
        kind = type(typed).__name__.removeprefix("Posix")
        read = f"config.{root}" + "".join(f"[{n}]" if n.isdigit() else f".{n}" for n in inner)
        text, cure = str(typed), f"{kind}({read})"
        if isinstance(typed, Enum):
            text, cure = typed.name, f"{kind}[{read}]"
        cure = f"key == {text!r}" if isinstance(value, list) else cure
        words = f"the function gets {of} as the text {text!r}, which never equals {typed!r}"
        yield build_warning_finding(key, text, f"{words}: write {cure} there")


def find_misspelt_root_keys(config: Mapping[str, Any], words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield root keys of a composed configuration that hpckit does not read, and what was meant.

    A file may contain the user's own keys, so only likely typos are reported: a misspelt name of hpckit's, or
    a compound one that belongs in `resources`. Keys forced on the command line (`++key`) are skipped.
    """
    forced = {word.lstrip("+").partition("=")[0] for word in words if word.startswith("++")}
    for key in config.keys() - {key_.partition(".")[0] for key_ in forced}:
        meant = guess_intended_key(key)
        if meant is not None and ("_" in key or key not in RESOURCES):
            yield key, meant


def refuse_misspelt_keys(session: Session, words: Sequence[Override]) -> None:
    """Raise ConfigError for the first override that adds a key that must be a typo.

    A key that exists in the user's own files is not a typo.
    """
    for word in words:
        key = word.key_or_group
        meant = guess_intended_key(key) if word.type is OverrideType.ADD and "/" not in key else None
        if meant is None or word.package is not None or _is_existing_key(session, word, words):
            continue
        line = str(word.input_line)
        raise ConfigError(
            f"{line} adds a key that hpckit does not read. Did you mean {meant}?",
            hint=f"Write {meant}=..., or ++{line.lstrip('+')} for a key of your own by that name.",
        )


def _is_existing_key(session: Session, word: Override, words: Sequence[Override]) -> bool:
    """Return whether the files have the key's root, or the override selects from a group."""
    if session.has_group(word.key_or_group):
        return True
    others = [str(other.input_line) for other in words if other is not word]
    try:
        files = session.compose_config([line for line in others if not line.startswith("+")])
    except FAILURES:
        return True  # the error is reported during composition
    return word.key_or_group.partition(".")[0] in files


def find_texts_set_for_number_keys(request: ComposeRequest) -> Iterator[tuple[str, float]]:
    """Yield each override that sets a text for a key that otherwise is a number, with that number.

    Raises ConfigError for a text that begins like a number.
    """
    if not any(_sets_user_key_to_text(word) or word.startswith(f"{KEY}=") for word in request.overrides):
        return
    with open_hydra_session(request) as session:
        words = words_for_all_stages(parse_override_words(request, session))
        for word in words:
            override = word.override
            key = override.key_or_group
            changes = override.type is OverrideType.CHANGE and not session.has_group(key)
            texts = list(_iterate_text_values(word)) if changes and _sets_user_key_to_text(f"{key}=") else []
            number = _number_without_override(word, words, session) if texts else None
            if number is not None:
                _refuse_malformed_number(key, texts, number)
                yield str(override.input_line), number


def _sets_user_key_to_text(word: str) -> bool:
    key, _, values = word.partition("=")
    if "/" in key or key.partition(".")[0].lstrip("+~") in _TYPED:
        return False
    return not all(is_number_text(value) for value in values.split(","))


def _is_text_in_hydra_grammar(value: str) -> bool:
    """Whether a value in Hydra's grammar is a text: nothing else that the grammar knows."""
    other = value.lower() in {"null", "true", "false"} or value[:1] in {"[", "{"} or "${" in value
    return not (other or is_number_text(value))


def _iterate_text_values(word: Word) -> Iterator[tuple[str, str]]:
    """Yield each value of a word that is a text, after what an error calls it."""
    override, column = word.override, word.column
    if column is not None:
        for line, text in zip(column.lines, column.words, strict=True):
            if text is not None and _is_text_in_hydra_grammar(text.partition("=")[2]):
                yield f"{format_line_position(column.file, line)}: {text}", text.partition("=")[2]
    elif not override.is_interval_sweep():  # which draws numbers
        for value in override.sweep_iterator() if word.is_swept else [override.value()]:
            if isinstance(value, str) and "${" not in value:
                yield str(override.input_line), str(value)


def _refuse_malformed_number(key: str, texts: Sequence[tuple[str, str]], number: float) -> None:
    for given, text in texts:
        quoted = f"'{text}'" in given or f'"{text}"' in given
        if _HALF_NUMBER.match(text) and not is_number_text(text) and not quoted:
            raise ConfigError(
                f"{given}: {text!r} is not a number, but {key} is {number:g} without it.",
                hint=f"Write a number; if a text is meant: '{key}=\"{text}\"'",
            )


def _number_without_override(word: Word, words: Sequence[Word], session: Session) -> float | None:
    rest = [other for other in words if other is not word and not other.override.is_sweep_override()]
    others = [str(other.override.input_line) for other in rest]
    try:
        value = OmegaConf.select(session.compose_config(others), word.override.key_or_group)
    except FAILURES:
        return None  # the error was already reported during composition
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else None
