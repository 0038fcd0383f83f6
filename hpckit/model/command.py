"""A configured command as the words of a process, split without a shell.

Responsible for the one meaning of `command`, at plan time and on the node; it must not run it.
"""

from __future__ import annotations

import shlex
from typing import Any

from hpckit.errors import ConfigError

_HOW = 'command is a list of words, or one string as a shell would split it: "python train.py"'


def command_words(command: Any) -> tuple[str, ...]:
    """Return the words of a command; raises ConfigError where there are none.

    No shell ever sees them: `$HOME`, `*`, `|` and `>` are words like any other. Booleans are
    written as in YAML.
    """
    words = _split(command) if isinstance(command, str) else _listed(command)
    if not words or not words[0]:
        raise ConfigError(f"command is empty: {command!r}", hint=_HOW)
    return words


def _split(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"command does not split into words: {str(error).lower()} in {text!r}", hint=_HOW
        ) from None


def _listed(command: Any) -> tuple[str, ...]:
    if isinstance(command, bool):
        # `command=true` is YAML's boolean, and a program.
        return (_word(command),)
    if not isinstance(command, list | tuple):
        raise ConfigError(f"command is a {type(command).__name__}: {command!r}", hint=_HOW)
    return tuple(_word(item) for item in command)


def _word(item: Any) -> str:
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, str | int | float):
        return str(item)
    raise ConfigError(f"command holds {item!r}, which is not a word or a number", hint=_HOW)
