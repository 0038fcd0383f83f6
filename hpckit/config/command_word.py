r"""Converts the command after `--` to an override in Hydra's grammar.

Each word arrives exactly as the shell passed it. Only interpolations (`${params.lr}`, or escaped
`\${HOME}`) are interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from omegaconf import grammar_parser
from omegaconf.errors import GrammarParseError

from hpckit.config.failures import FAILURES
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session
from hpckit.errors import ConfigError
from hpckit.model.command import escaped, override_value, quoted

_EXPERIMENT = re.compile(r"(?:\w+:)?\+{0,2}experiment(?:@[^=]*)?=", re.ASCII)
_COMMAND = re.compile(r"(?:\w+:)?\+{0,2}command=", re.ASCII)


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
