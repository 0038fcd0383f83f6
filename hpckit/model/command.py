"""A configured command as the words of a process, split without a shell.

The one interpretation of `command`, at plan time and on the node, and of what its words say about
the program, script or module that it starts. Pure: it neither runs the command nor looks for files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpckit.errors import ConfigError

_HOW = 'command is a list of words, or one string as a shell would split it: "python train.py"'


def command_words(command: Any) -> tuple[str, ...]:
    """Return the words of a command. Raises ConfigError if it has none or is malformed.

    No shell reads them: `$HOME`, `*`, `|` and `>` are words like any other. Booleans are written as
    in YAML.
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
        # `command=true` is a boolean in YAML, but also the name of a program.
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


SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})

_PYTHON = re.compile(r"python[\d.]*\Z")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SEPARATOR = re.compile(r"[;&|()]+\Z")
_REDIRECTION = re.compile(r"[<>&]*[<>][<>&]*\Z")
_PREFIXES = frozenset({"exec"})
_VALUED_LONG = frozenset({"--check-hash-based-pycs", "--rcfile", "--init-file"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What a command starts; at most one of script, module and code is set.

    `program` is the program's name without folders; a leading `env A=1` is skipped. `code` is the
    argument of an interpreter's `-c`. `arguments` are those of the script, module or code,
    otherwise all words except the program.
    """

    program: str
    arguments: tuple[str, ...]
    script: str | None = None
    module: str | None = None
    code: str | None = None

    @property
    def is_python(self) -> bool:
        """Whether the program is a Python."""
        return _PYTHON.match(self.program) is not None

    @property
    def is_shell(self) -> bool:
        """Whether the program is a shell."""
        return self.program in SHELLS


def invocation(words: Sequence[str]) -> Invocation:
    """Return what the words of a command start."""
    rest = _behind_env(words)
    program, given = rest[0].rpartition("/")[2], tuple(rest[1:])
    if _PYTHON.match(program):
        return _of_python(program, given)
    if program in SHELLS:
        return _of_shell(program, given)
    return Invocation(program=program, arguments=given)


def script_of(words: Sequence[str]) -> str | None:
    """Return the script that a command starts, also by torchrun, whose options take values."""
    started = invocation(words)
    if started.program == "torchrun":
        return next((word for word in words if word.endswith(".py")), None)
    return started.script


def _behind_env(words: Sequence[str]) -> Sequence[str]:
    if words[0].rpartition("/")[2] != "env":
        return words
    rest = next((n for n in range(1, len(words)) if not _ASSIGNMENT.match(words[n])), 0)
    return words[rest:] if rest and not words[rest].startswith("-") else words


def _of_python(program: str, given: tuple[str, ...]) -> Invocation:
    place = 0
    while _is_option(given[place : place + 1]):
        word = given[place]
        place += 1
        letter = next((one for one in word[1:] if one in "cmWX"), "")
        if word.startswith("--"):
            place += word in _VALUED_LONG
            continue
        value = word.partition(letter)[2] if letter else ""
        if letter and not value:
            value = "".join(given[place : place + 1])
            place += 1
        if letter == "m":
            return Invocation(program=program, arguments=given[place:], module=value)
        if letter == "c":
            return Invocation(program=program, arguments=given[place:], code=value)
    return _of_script(program, given[place:])


def _of_shell(program: str, given: tuple[str, ...]) -> Invocation:
    place, has_code = 0, False
    while _is_option(given[place : place + 1]):
        word = given[place]
        place += 1
        letters = "" if word.startswith("--") else word[1:]
        has_code = has_code or ("c" in letters and word[0] == "-")
        place += word in _VALUED_LONG or "o" in letters or "O" in letters
    rest = given[place:]
    if has_code:
        return Invocation(program=program, arguments=rest[1:], code="".join(rest[:1]))
    return _of_script(program, rest)


def _is_option(word: Sequence[str]) -> bool:
    return bool(word) and word[0][:1] in {"-", "+"} and word[0] not in {"-", "--"}


def _of_script(program: str, rest: tuple[str, ...]) -> Invocation:
    rest = rest[1:] if rest[:1] == ("--",) else rest
    if not rest or rest[0] == "-":
        return Invocation(program=program, arguments=rest[1:])
    return Invocation(program=program, arguments=rest[1:], script=rest[0])


def shell_commands(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands in a line for a shell, as far as they are easy to read.

    Leading assignments, `exec`, and redirections with their files are left out. Nothing is
    expanded.
    """
    lexer = shlex.shlex(line.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = [*lexer, ";"]
    except ValueError:
        return
    words: list[str] = []
    redirected = False
    for token in tokens:
        if _SEPARATOR.match(token):
            if words:
                yield tuple(words)
            words = []
        elif _REDIRECTION.match(token):
            redirected = True
            continue
        elif not redirected and (words or not (_ASSIGNMENT.match(token) or token in _PREFIXES)):
            words.append(token)
        redirected = False
