"""What argparse lacks: errors in plain words, guesses, options that are given once."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from typing import Any

from hpckit.patterns import lazy_pattern

_INVALID = lazy_pattern(
    r"argument (?P<name>\S+): invalid (?P<kind>int|float) value: (?P<value>.*)", re.DOTALL
)
_CHOICE = lazy_pattern(
    r"argument (?P<name>\S+): invalid choice: (?P<value>.*?) \(choose from (?P<known>.*)\)", re.DOTALL
)
_EXCLUDED = lazy_pattern(r"argument (?P<name>\S+): not allowed with argument (?P<other>\S+)")
_OTHER = lazy_pattern(r"argument (?P<name>\S+): (?P<why>.*)", re.DOTALL)
_WORDS = {"int": "a whole number, such as 3", "float": "a number, such as 1.5"}
_MISSING = lazy_pattern(r"the following arguments are required: (?P<names>.*)", re.DOTALL)
_LIKE_CHOICE = 0.6
_NO_VALUE = "expected one argument"

_SHORTEST = 3
_LIKE_OPTION = 0.75
"""`--wiat` is that similar to `--wait`; `--epochs` and `--detach` are not."""

_FILLERS = ("num", "n", "number", "of", "count", "total", "size", "len", "length", "per", "s")
"""Words of an option that say no more than that it is a number."""

_GIVEN = "_given_once"


def reword_argparse_error(message: str) -> tuple[str, str]:
    """Return a message of argparse in words, and a hint, which is empty if there is none."""
    if found := _INVALID.fullmatch(message):
        return f"{_argument_name(found)} is {found['value']}; it takes {_WORDS[found['kind']]}", ""
    if found := _CHOICE.fullmatch(message):
        known = [choice.strip(" '\"") for choice in found["known"].split(",")]
        near = difflib.get_close_matches(found["value"].strip("'\""), known, n=1, cutoff=_LIKE_CHOICE)
        hint = f"did you mean {near[0]}?" if near else ""
        return f"{_argument_name(found)} is {found['value']}; it is one of {', '.join(known)}", hint
    if found := _MISSING.fullmatch(message):
        names = [name.split("/")[0] for name in found["names"].split(", ")]
        return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing", ""
    if found := _EXCLUDED.fullmatch(message):
        return f"cannot combine {_argument_name(found, 'other')} with {_argument_name(found)}", ""
    if found := _OTHER.fullmatch(message):
        why = found["why"]
        return f"{_argument_name(found)} {'needs a value' if why == _NO_VALUE else why}", ""
    return message, ""


def _argument_name(found: re.Match[str], group: str = "name") -> str:
    return max(found[group].split("/"), key=len)


def exclude_options(
    parser: argparse.ArgumentParser, option: str, *others: str, hint: str = "leave one of the two out"
) -> None:
    """Have a parser refuse an option beside each of the others, where one of the two would be ignored."""
    actions = parser._option_string_actions  # noqa: SLF001  # argparse excludes only what it adds together
    for other in others:
        group = parser.add_mutually_exclusive_group()
        group.description = hint
        group._group_actions += [actions[option], actions[other]]  # noqa: SLF001


def suggest_option(
    unknown: str,
    words: Sequence[str],
    options: Collection[str],
    *,
    verb: str,
    composes: bool,
    takes_command: bool = True,
) -> str:
    """Return what to write instead of the `unknown` option among these words.

    `composes` is whether the verb takes overrides, `takes_command` whether a command after `--`,
    whose options are not the verb's.
    """
    name, given, value = unknown.partition("=")
    opposite = name.replace("--no-", "--", 1)
    if opposite != name and opposite in options:
        return f"leave {opposite} out: it is off by default"
    near = difflib.get_close_matches(name, options, n=1, cutoff=_LIKE_OPTION)
    if near:
        return f"did you mean {near[0]}?"
    if not takes_command and (alike := _find_options_by_stem(name, options)):
        return f"did you mean {' or '.join(alike)}?"
    if not composes or not takes_command or not name.startswith("--"):
        return f"`{verb} --help` lists the options"
    if not given:
        value = _value_after_option(unknown, words)
    key = name.lstrip("-").replace("-", "_")
    own = shlex.join([name, value]) if value else name
    return (
        f"write what is configured as a word, without dashes: {key}={value or '...'}\n"
        f"options of your own script belong after --: {verb} -- python train.py {own}"
    )


def _find_options_by_stem(name: str, options: Collection[str]) -> list[str]:
    """Return options with the word that matters in a name: `--gpus` for `--gpu-count`."""
    stems = [part for part in name.lower().strip("-").split("-") if part not in _FILLERS]
    stem = "".join(stems[:1]).removeprefix("n")
    if len(stem) < _SHORTEST:
        return []
    counts = len(stems) < len(name.strip("-").split("-"))
    long = sorted(option for option in options if option.startswith("--"))
    if counts and f"--{stem.removesuffix('s')}s" in long:
        return [f"--{stem.removesuffix('s')}s"]
    parts = {option: option.strip("-").split("-") for option in long}
    return [option for option in long if any(part.startswith(stem) for part in parts[option])][:3]


def _value_after_option(option: str, words: Sequence[str]) -> str:
    place = list(words).index(option) + 1 if option in words else len(words)
    following = words[place] if place < len(words) else ""
    return "" if following.startswith("-") or "=" in following else following


class OptionalValue(argparse.Action):
    """An option that may have a value: the next word only if `takes` accepts it.

    argparse would take any next word, also the LAUNCH in `--watch LAUNCH`.
    """

    def __init__(
        self, option_strings: Sequence[str], dest: str, takes: Callable[[str], bool], **given: Any
    ) -> None:
        super().__init__(option_strings, dest, nargs="?", **given)
        self.takes = takes

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  # argparse's interface
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,  # noqa: ARG002  # argparse's interface
    ) -> None:
        """Keep the value, as argparse's own `store` does."""
        setattr(namespace, self.dest, values)


class Once(argparse.Action):
    """Stores a value; an option that is given a second time is refused, with both values.

    `parser.register("action", None, Once)` makes it the action of all arguments that name none.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Keep the value; raises ArgumentError."""
        del parser
        given: set[str] = getattr(namespace, _GIVEN, set())
        if option_string is not None and self.dest in given:
            before = getattr(namespace, self.dest)
            raise argparse.ArgumentError(self, f"is given twice, as {before} and {values}: give it once")
        setattr(namespace, _GIVEN, given | {self.dest})
        setattr(namespace, self.dest, values)
