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
    behind_env,
    escaped,
    override_value,
    quoted,
    reader_of,
    written,
)
from hpckit.patterns import lazy_pattern

_EXPERIMENT = lazy_pattern(r"(?:\w+:)?\+{0,2}experiment(?:@[^=]*)?=", re.ASCII)
_RESOLVER = "hpckit.written"
_OPENED = lazy_pattern(r"(\\*)(\$\{)")
_NAME = lazy_pattern(r"\$\{([\w.]+)\}\Z", re.ASCII)
_COMMAND = lazy_pattern(r"(?:\w+:)?\+{0,2}command=", re.ASCII)


def with_command(request: ComposeRequest, session: Session) -> tuple[str, ...]:
    """Return the overrides of a request, including those for the command after `--`.

    If no experiment is chosen, experiment=command is added. Raises ConfigError.
    """
    overrides, command = request.overrides, request.command
    if command is None:
        return overrides
    given = next((word for word in overrides if _COMMAND.match(word)), None)
    if given is not None:
        raise ConfigError(
            f"the command is given twice: {given}, and {command[0]!r} ... behind --",
            hint="leave one of them out",
        )
    chosen = any(_EXPERIMENT.match(word) for word in overrides)
    choice = () if chosen else (_choice(session),)
    return (*overrides, *choice, command_override(command))


def _choice(session: Session) -> str:
    """Return the override that selects experiment=command, even if the files select none."""
    word = "experiment=command"
    for form in (word, f"+{word}"):
        with suppress(*FAILURES):
            session.defaults([form])
            return form
    return word


def command_override(words: Sequence[str]) -> str:
    """Return `command=[...]` with exactly these words.

    Example:
        >>> command_override(["python", "train.py", "--tags", "a, b"])
        'command=[python,train.py,--tags,"a, b"]'

    """
    return f"command=[{','.join(map(_word, words))}]"


def literal_word(text: str) -> str:
    """Return a text as a value of an override, in which nothing is interpreted."""
    return _word(escaped(text))


def _word(word: str) -> str:
    if word == "???":
        raise ConfigError(
            "the command has the word ???, which marks a value that is still to be given",
            hint="replace it; if a program really takes it: -- bash -c 'program \"???\"'",
        )
    if "${" not in word or not is_readable(word):
        return override_value(word)  # also what only looks like an interpolation: `${x `
    # Hydra stores the override as separate text, in which quotes cannot be escaped.
    forms = [quoted(word, quote) for quote in ("'\"" if '"' in word else "\"'")]
    found = next(filter(is_readable, forms), None)
    if found is None:
        raise ConfigError(
            f"a text with an interpolation has both kinds of quotes: {word}",
            hint="give it a key of its own, such as +params.x=..., and write ${params.x}",
        )
    return found


def is_readable(text: str) -> bool:
    """Return whether OmegaConf can parse a text with an interpolation."""
    try:
        grammar_parser.parse(text)
    except GrammarParseError:
        return False
    return True


def mark_command(config: DictConfig) -> DictConfig:
    """Mark each interpolation in the command of a composition, in place, and return it.

    Resolving it then raises ConfigError for a null where a text has to be.
    """
    register_resolver(_RESOLVER, _written, replace=True)
    masked: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, "command"))
    given = masked.get("command")
    marked = given
    if isinstance(given, list) and given:
        first = len(given) - len(behind_env([str(word) for word in given]))
        marked = [_marked(word, plain=place < first) for place, word in enumerate(given)]
    elif isinstance(given, str) and not _NAME.match(given):
        marked = _marked(given, listed=False)
    if marked != given:
        with flag_override(config, ["readonly", "struct"], False):  # noqa: FBT003  # its own signature
            config.command = marked
    return config


def _marked(text: Any, *, listed: bool = True, plain: bool = False) -> Any:
    """Return a word, or a whole command, in which the resolver has each interpolation."""
    if not isinstance(text, str):
        return text
    done = begin = 0
    pieces: list[str] = []
    for opened in _OPENED.finditer(text):
        begin = opened.start(2)
        ends = (match_.end() for match_ in re.finditer("}", text) if match_.start() > begin)
        end = next((place for place in ends if is_readable(text[begin:place])), None)
        if begin < done or len(opened[1]) % 2 or end is None:
            continue
        inside = text[begin:end]
        reader = reader_of(text[:begin], text[end:], listed=listed)
        name = match[1] if (match := _NAME.match(inside)) else "its value"
        reader = Reader.program if plain else reader
        pieces += [text[done:begin], f'${{{_RESOLVER}:{reader},"{name}",{inside}}}']
        done = end
    return "".join(pieces) + text[done:]


def _written(reader: str, name: str, value: Any) -> Any:
    if value is None and reader == Reader.program:
        raise ConfigError(
            f"{name} is null, and a null has no text",
            hint="Give it a text, or leave the word out. Only a word key=${...} of its own can be "
            "null: Hydra reads key=null.",
        )
    return written(value, Reader(reader))
