r"""Converts the command after `--` to an override in Hydra's grammar, and marks the values in it.

Each word arrives exactly as the shell passed it. Only interpolations (`${params.lr}`, or escaped
`\${HOME}`) are interpreted. They are marked, so that each value is written for what reads it: an
application with a configuration of its own reads `lr=${params.lr}` in Hydra's grammar once more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override, grammar_parser
from omegaconf.errors import GrammarParseError

from hpckit.config.failures import FAILURES
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session, register_resolver
from hpckit.errors import ConfigError
from hpckit.model.command import (
    Reader,
    detect_parser_of_value,
    encode_override_value,
    encode_value_for_its_parser,
    escape_interpolations,
    quote_for_hydra,
    strip_env_prefix,
)
from hpckit.patterns import lazy_pattern

_EXPERIMENT = lazy_pattern(r"(?:\w+:)?\+{0,2}experiment(?:@[^=]*)?=", re.ASCII)
_RESOLVER = "hpckit.written"
_OPENED = lazy_pattern(r"(\\*)(\$\{)")
_NAME = lazy_pattern(r"\$\{([\w.]+)\}\Z", re.ASCII)
_COMMAND = lazy_pattern(r"(?:\w+:)?\+{0,2}command=", re.ASCII)


def add_command_override(request: ComposeRequest, session: Session) -> tuple[str, ...]:
    """Return the overrides of a request, including those for the command after `--`.

    If no experiment is chosen, experiment=command is added. Raises ConfigError.
    """
    overrides, command = request.overrides, request.command
    if command is None:
        return overrides
    given = next((word for word in overrides if _COMMAND.match(word)), None)
    if given is not None:
        raise ConfigError(
            f"the command is given twice: {given}, and {command[0]!r} ... after --",
            hint="leave one of them out",
        )
    chosen = any(_EXPERIMENT.match(word) for word in overrides)
    choice = () if chosen else (_select_command_experiment(session),)
    return (*overrides, *choice, build_command_override(command))


def _select_command_experiment(session: Session) -> str:
    word = "experiment=command"
    for form in (word, f"+{word}"):
        with suppress(*FAILURES):
            session.list_composed_files([form])
            return form
    return word


def build_command_override(words: Sequence[str]) -> str:
    """Return `command=[...]` with exactly these words.

    Example:
        >>> build_command_override(["python", "train.py", "--tags", "a, b"])
        'command=[python,train.py,--tags,"a, b"]'

    """
    return f"command=[{','.join(map(_encode_command_word, words))}]"


def encode_literal_value(text: str) -> str:
    """Return a text as a value of an override, in which nothing is interpreted."""
    return _encode_command_word(escape_interpolations(text))


def _encode_command_word(word: str) -> str:
    if word == "???":
        raise ConfigError(
            "the command has the word ???, which marks a value that must still be set",
            hint="replace it; if a program really needs it: -- bash -c 'program \"???\"'",
        )
    if "${" not in word or not is_valid_interpolation(word):
        return encode_override_value(word)  # also what only looks like an interpolation: `${x `
    # Hydra stores the override as separate text, in which quotes cannot be escaped.
    forms = [quote_for_hydra(word, quote) for quote in ("'\"" if '"' in word else "\"'")]
    found = next(filter(is_valid_interpolation, forms), None)
    if found is None:
        raise ConfigError(
            f"a text with an interpolation cannot have both kinds of quotes: {word}",
            hint="give it a key of its own, such as +params.x=..., and write ${params.x}",
        )
    return found


def is_valid_interpolation(text: str) -> bool:
    """Return whether OmegaConf can parse a text with an interpolation."""
    try:
        grammar_parser.parse(text)
    except GrammarParseError:
        return False
    return True


def wrap_command_interpolations(config: DictConfig) -> DictConfig:
    """Mark each interpolation in the command of a composition, in place, and return it.

    Resolving it then raises ConfigError for a null where a text has to be.
    """
    register_resolver(_RESOLVER, _resolve_wrapped_interpolation, replace=True)
    masked: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, "command"))
    given = masked.get("command")
    marked = given
    if isinstance(given, list) and given:
        first = len(given) - len(strip_env_prefix([str(word) for word in given]))
        marked = [_wrap_interpolations_of_word(word, plain=place < first) for place, word in enumerate(given)]
    elif isinstance(given, str) and not _NAME.match(given):
        marked = _wrap_interpolations_of_word(given, listed=False)
    if marked != given:
        with flag_override(config, ["readonly", "struct"], False):  # noqa: FBT003  # its own signature
            config.command = marked
    return config


def _wrap_interpolations_of_word(text: Any, *, listed: bool = True, plain: bool = False) -> Any:
    if not isinstance(text, str):
        return text
    done = begin = 0
    pieces: list[str] = []
    for opened in _OPENED.finditer(text):
        begin = opened.start(2)
        ends = (match_.end() for match_ in re.finditer("}", text) if match_.start() > begin)
        end = next((place for place in ends if is_valid_interpolation(text[begin:place])), None)
        if begin < done or len(opened[1]) % 2 or end is None:
            continue
        inside = text[begin:end]
        reader = detect_parser_of_value(text[:begin], text[end:], listed=listed)
        name = match[1] if (match := _NAME.match(inside)) else "its value"
        reader = Reader.program if plain else reader
        pieces += [text[done:begin], f'${{{_RESOLVER}:{reader},"{name}",{inside}}}']
        done = end
    return "".join(pieces) + text[done:]


def _resolve_wrapped_interpolation(reader: str, name: str, value: Any) -> Any:
    if value is None and reader == Reader.program:
        raise ConfigError(
            f"{name} is null, which cannot be written as text",
            hint="Give it a value, or remove the word. Only a separate word key=${...} can be "
            "null: Hydra reads key=null.",
        )
    return encode_value_for_its_parser(value, Reader(reader))
