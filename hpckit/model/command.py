"""A configured command as the words of a process, split without a shell.

The one interpretation of `command`, at plan time and on the node, and of what its words say about
the program, script or module that it starts. Pure: it neither runs the command nor looks for files.

Many programs read `key=value` in the grammar of Hydra's overrides, in which `1` and `'1'` differ.
So a value in such a word is written in that grammar: numbers and plain words as they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any

from hpckit.errors import ConfigError
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass

_HOW = 'command is a list of words, or one string as a shell would split it: "python train.py"'


def split_command(command: Any) -> tuple[str, ...]:
    """Return the words of a command. Raises ConfigError if it has none or is malformed.

    No shell reads them: `$HOME`, `*`, `|` and `>` are words like any other. Booleans are written as in YAML.
    """
    words = _split_command_text(command) if isinstance(command, str) else _command_list_to_words(command)
    if not words or not words[0]:
        raise ConfigError(f"command is empty: {command!r}", hint=_HOW)
    return words


def _split_command_text(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"command cannot be split into words: {str(error).lower()} in {text!r}", hint=_HOW
        ) from None


def _command_list_to_words(command: Any) -> tuple[str, ...]:
    if isinstance(command, bool):
        # `command=true` is a boolean in YAML, but also the name of a program.
        return (_command_item_to_text(command),)
    if not isinstance(command, list | tuple):
        raise ConfigError(f"command is a {type(command).__name__}: {command!r}", hint=_HOW)
    return tuple(_command_item_to_text(item) for item in command)


def _command_item_to_text(item: Any) -> str:
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, str | int | float):
        return str(item)
    raise ConfigError(f"command holds {item!r}, which is not a word or a number", hint=_HOW)


SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})

_PYTHON = lazy_pattern(r"python[\d.]*\Z")
_ASSIGNMENT = lazy_pattern(r"[A-Za-z_]\w*=")
_SEPARATOR = lazy_pattern(r"[;&|()]+\Z")
_REDIRECTION = lazy_pattern(r"[<>&]*[<>][<>&]*\Z")
_PREFIXES = frozenset({"exec", "time", "if", "then", "elif", "else", "while", "until", "do", "!", "{"})
_WRAPPERS = {
    **dict.fromkeys(("nohup", "setsid", "eval", "unbuffer", "catchsegv"), ("", 0)),
    **dict.fromkeys(("taskset", "chrt"), ("", 1)),
    "env": ("-u --unset -C --chdir", 0),
    "exec": ("-a", 0),
    "command": ("-v -V", 0),
    "sudo": ("-u --user -g --group", 0),
    "time": ("-f --format -o --output", 0),
    "nice": ("-n --adjustment", 0),
    "ionice": ("-c --class -n --classdata", 0),
    "stdbuf": ("-i --input -o --output -e --error", 0),
    "numactl": ("-i --interleave -p --preferred -m --membind -N --cpunodebind -C --physcpubind", 0),
    "timeout": ("-k --kill-after -s --signal", 1),
}
"""Programs that start what is behind their own words: options with a value, count of others."""
_RUNNERS = lazy_pattern(r"(?:uv|poetry|pdm|hatch|pixi|pipenv|rye|conda|\w*mamba) run\Z|nsys profile\Z")
_CONTAINERS = lazy_pattern(r"(?:apptainer|singularity) exec\Z")
_VALUED = (
    "-n --name -p --prefix --cwd --python --with --extra --group --env-file --directory --project "
    "--package --index -C -e --environment --manifest-path -o --output -t --trace -B --bind -H "
    "--home --env --pwd"
)
_VALUED_LONG = frozenset({"--check-hash-based-pycs", "--rcfile", "--init-file"})

MPI_CURE = (
    "hpckit does not start MPI ranks: on one node, launch one rank (resources.nodes=1 "
    "resources.tasks_per_node=1 resources.cpus_per_task=N) that runs mpirun -np N (Open MPI's with "
    "--oversubscribe, as Slurm counts one task); over several nodes use a batch script of your "
    "own, with srun --mpi=pmix or mpirun"
)
"""What to do with a program of MPI."""


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


def parse_invocation(words: Sequence[str]) -> Invocation:
    """Return what the words of a command start."""
    rest = strip_env_prefix(words)
    program, given = rest[0].rpartition("/")[2], tuple(rest[1:])
    if _PYTHON.match(program):
        return _parse_python_invocation(program, given)
    if program in SHELLS:
        return _parse_shell_invocation(program, given)
    return Invocation(program=program, arguments=given)


def find_started_script(words: Sequence[str]) -> str | None:
    """Return the script that a command starts, also by torchrun, whose options take values."""
    started = parse_invocation(words)
    if started.program == "torchrun":
        return next((word for word in words if word.endswith(".py")), None)
    return started.script


def strip_env_prefix(words: Sequence[str]) -> Sequence[str]:
    """Return the words without a leading `env A=1`."""
    if words[0].rpartition("/")[2] != "env":
        return words
    rest = next((n for n in range(1, len(words)) if not _ASSIGNMENT.match(words[n])), 0)
    return words[rest:] if rest and not words[rest].startswith("-") else words


def _parse_python_invocation(program: str, given: tuple[str, ...]) -> Invocation:
    place = 0
    while _starts_with_option(given[place : place + 1]):
        word = given[place]
        place += 1
        letter = next((letter_ for letter_ in word[1:] if letter_ in "cmWX"), "")
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
    return _parse_script_invocation(program, given[place:])


def _parse_shell_invocation(program: str, given: tuple[str, ...]) -> Invocation:
    place, has_code = 0, False
    while _starts_with_option(given[place : place + 1]):
        word = given[place]
        place += 1
        letters = "" if word.startswith("--") else word[1:]
        has_code = has_code or ("c" in letters and word[0] == "-")
        place += word in _VALUED_LONG or "o" in letters or "O" in letters
    rest = given[place:]
    if has_code:
        return Invocation(program=program, arguments=rest[1:], code="".join(rest[:1]))
    return _parse_script_invocation(program, rest)


def _starts_with_option(word: Sequence[str]) -> bool:
    return bool(word) and word[0][:1] in {"-", "+"} and word[0] not in {"-", "--"}


def _parse_script_invocation(program: str, rest: tuple[str, ...]) -> Invocation:
    rest = rest[1:] if rest[:1] == ("--",) else rest
    if not rest or rest[0] == "-":
        return Invocation(program=program, arguments=rest[1:])
    return Invocation(program=program, arguments=rest[1:], script=rest[0])


def list_inner_commands(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the command without what merely starts it, or those in the line given to a shell."""
    words = strip_command_wrappers(words)
    line = extract_code_passed_to_shell(words)
    if line is not None:
        return [inner for each, _ in parse_shell_commands(line) for inner in list_inner_commands(each)]
    return [words] if words else []


def extract_code_passed_to_shell(words: Sequence[str]) -> str | None:
    """Return the line that a command gives to a shell; None if it gives none."""
    started = parse_invocation(words) if words else None
    return started.code if started is not None and started.is_shell else None


def strip_command_wrappers(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words without `nohup`, `env A=1`, `uv run` and the like; empty if none is left."""
    rest = tuple(words)
    while rest:
        program = rest[0].rpartition("/")[2]
        valued, count = _WRAPPERS.get(program, (_VALUED, 0))
        behind = _skip_leading_options(rest[1:], valued)
        tool = " ".join((program, *behind[:1]))
        if _ASSIGNMENT.match(rest[0]):
            behind = rest[1:]
        elif _RUNNERS.match(tool) or _CONTAINERS.match(tool):
            count = 1 if _CONTAINERS.match(tool) else 0
            behind = _skip_leading_options(behind[1:], valued)
        elif program not in _WRAPPERS:
            return rest
        rest = behind[count:]
    return rest


def _skip_leading_options(words: tuple[str, ...], valued: str) -> tuple[str, ...]:
    while words and words[0].startswith("-"):
        if words[0] == "--":
            return words[1:]
        words = words[2 if words[0] in valued.split() else 1 :]
    return words


def parse_shell_commands(line: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the commands in a line for a shell that are easy to read, each with the sign behind it.

    Leading assignments, `exec`, `then` and the like, and redirections with their files are left
    out. Nothing is expanded.
    """
    lexer = shlex.shlex(line.replace("\\\n", " ").replace("\n", "\n;"), posix=True, punctuation_chars=True)
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
                yield tuple(words), token
            words = []
        elif _REDIRECTION.match(token):
            redirected = True
            continue
        elif not redirected and (
            words or not (_ASSIGNMENT.match(token) or token in _PREFIXES or token[:1] == "-")
        ):
            words.append(token)
        redirected = False


_KEY = r"(?:~|\+{0,2})[A-Za-z_$][\w$./-]*(?:@[\w$.:-]*)?="
_OVERRIDE = lazy_pattern(rf"{_KEY}\Z", re.ASCII)
_OF_ENV = r"(?!(?:\S*/)?env(?:\s+\w+=\S*)*\s+\w+=\Z)"
_IN_LINE = lazy_pattern(rf"{_OF_ENV}(?:.*\s)?(?:(['\"]){_KEY}|{_KEY}(['\"])|{_KEY})\Z", re.ASCII | re.DOTALL)
_PLAIN = lazy_pattern(r"[\w/+.%@?|*:-]+(?: [\w/+.%@?|*:-]+)*", re.ASCII)
_PLAIN_KEY = lazy_pattern(r"(?:[\w/+.%@?|*-]|\\.)+", re.ASCII)
_SPECIAL = lazy_pattern(r"([\\()\[\]{}:=, \t])")
_OPENED = lazy_pattern(r"(\\*)\$\{")


class Reader(StrEnum):
    """What reads a value in a command: any program, or Hydra, which may be behind a shell's quotes.

    `shell`, `single` and `double` are for a command that is one text, by the quotes around.
    """

    program = "program"
    hydra = "hydra"
    shell = "shell"
    single = "single"
    double = "double"


def detect_parser_of_value(before: str, after: str, *, listed: bool) -> Reader:
    """Return what reads a value between these texts of a word, or of a command that is one text."""
    if listed:
        return Reader.hydra if not after and _OVERRIDE.match(before) else Reader.program
    match = _IN_LINE.match(before)
    quote = (match[1] or match[2] or "") if match else ""
    if match is None or not re.match(rf"{quote}(?:\s|\Z)", after):
        return Reader.program
    return {"": Reader.shell, "'": Reader.single, '"': Reader.double}[quote]


def encode_value_for_its_parser(value: Any, reader: Reader) -> Any:
    """Return a value as its reader needs it; raises ConfigError if it has no form for Hydra."""
    if reader is Reader.program:
        return value
    text = encode_override_value(value) if value != "" else ""
    if reader is Reader.single:
        return text.replace("'", "'\"'\"'")
    if reader is Reader.double:
        return re.sub(r'(["\\])', r"\\\1", text)
    return shlex.quote(text) if reader is Reader.shell and text else text


def encode_override_value(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides, which reads it as the same value.

    Numbers and plain words stay as they are. Raises ConfigError for a mapping with a key that has
    no form in the grammar.
    """
    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value)
    if isinstance(value, Mapping):
        pairs = (f"{_encode_mapping_key(key)}:{encode_override_value(item)}" for key, item in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"[{','.join(map(encode_override_value, value))}]"
    text = value.name if isinstance(value, Enum) else str(value)
    if _PLAIN.fullmatch(text) and not _is_number_bool_or_null(text):
        return text
    return quote_for_hydra(escape_interpolations(text), "'" if '"' in text else '"')


def escape_interpolations(text: str) -> str:
    """Return a text in which OmegaConf sees no interpolation."""
    return _OPENED.sub(r"\1\1\\${", text)


def quote_for_hydra(text: str, quote: str) -> str:
    """Return a text in quotes, as Hydra's grammar reads it."""
    body = re.sub(rf"(\\*){quote}", rf"\1\1\\{quote}", text)
    behind = len(body) - len(body.rstrip("\\"))
    return f"{quote}{body}{body[len(body) - behind :]}{quote}"


def _encode_mapping_key(key: Any) -> str:
    text = _SPECIAL.sub(r"\\\1", key) if isinstance(key, str) else encode_override_value(key)
    if isinstance(key, str) and (not _PLAIN_KEY.fullmatch(text) or _is_number_bool_or_null(text)):
        raise ConfigError(
            f"the key {key!r} of a mapping cannot be written in the grammar of Hydra's overrides",
            hint="Name it with letters and digits, or let the application read it from a file.",
        )
    return text


def _is_number_bool_or_null(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in {"true", "false", "null"}
    return True
