"""Completions for the word being typed; the shell calls hpckit itself (argcomplete).

Asks no scheduler and imports nothing slow. Imported only for completion.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from argcomplete.completers import DirectoriesCompleter, FilesCompleter, SuppressCompleter
from argcomplete.finders import CompletionFinder

from hpckit.cli.main import VERBS, import_verb_module
from hpckit.cli.options import choose_output_dir
from hpckit.config.request import ComposeRequest, list_conf_folders
from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.model.launch import LaunchConfig
from hpckit.model.states import RunState
from hpckit.record.layout import LaunchPaths
from hpckit.record.lookup import list_all_launches, list_own_launches
from hpckit.values import field_names, is_dataclass

_MOST_RUNS = 500

Words = Callable[[str, argparse.Namespace, Context], Iterable[str]]
"""Takes the typed part of a word, and the words before it."""


def answer_shell_completion(context: Context) -> int:
    """Answer the command line that the shell has put into the environment; never returns.

    Ends the process.
    """
    line = context.environ.get("COMP_LINE", "")
    before = line[: int(context.environ.get("COMP_POINT") or len(line))].split()
    verb = before[1] if len(before) > 1 else ""
    finder = _Finder(always_complete_options=False, default_completer=SuppressCompleter())
    finder(_build_full_parser(verb, context), always_complete_options=False, default_completer=finder.nothing)
    return 0


class _Finder(CompletionFinder):
    """Completes positional words after options, too: they are allowed anywhere."""

    nothing = SuppressCompleter()

    def collect_completions(
        self,
        active_parsers: list[argparse.ArgumentParser],
        parsed_args: argparse.Namespace,
        cword_prefix: str,
    ) -> list[str]:
        """Return the completions for what is typed."""
        found: list[str] = super().collect_completions(active_parsers, parsed_args, cword_prefix)
        parser: Any = active_parsers[-1]
        takes_value = any(action.option_strings and action.nargs is None for action in parser.active_actions)
        if found or takes_value or cword_prefix.startswith("-"):
            return found
        for action in parser._get_positional_actions():  # noqa: SLF001  # argcomplete does the same
            offer = getattr(action, "completer", None)
            if action.nargs in {"*", "+", "?"} and offer is not None:
                words = offer(prefix=cword_prefix, parsed_args=parsed_args)
                found += [word for word in words if word.startswith(cword_prefix)]
        return found


def _build_full_parser(verb: str, context: Context) -> argparse.ArgumentParser:
    """Return a parser of the whole command line, with the options of only one verb."""
    parser = argparse.ArgumentParser(prog="hpckit", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="show the version")
    verbs = parser.add_subparsers()
    for name, line in VERBS.items():
        one = verbs.add_parser(name, help=line, allow_abbrev=False)
        if name == verb:
            import_verb_module(name).add_arguments(one)
            _attach_completers(one, context)
    return parser


def _attach_completers(parser: argparse.ArgumentParser, context: Context) -> None:
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way
        offer = _OFFERS.get(str(action.metavar))
        if offer is not None:
            action.completer = partial(_call_completer_safely, offer, context)  # type: ignore[attr-defined]
        elif action.metavar == "DIR":
            action.completer = DirectoriesCompleter()  # type: ignore[attr-defined]
        elif action.metavar == "PATH":
            action.completer = FilesCompleter()  # type: ignore[attr-defined]


def _call_completer_safely(
    offer: Words, context: Context, prefix: str, parsed_args: argparse.Namespace, **_: object
) -> Iterable[str]:
    """Return the completions, as argcomplete asks for them; empty if something cannot be read."""
    with contextlib.suppress(HpckitError, OSError):
        return list(offer(prefix, parsed_args, context))
    return []


def _complete_launches(prefix: str, arguments: argparse.Namespace, context: Context) -> Iterator[str]:
    """Yield ids of launches, newest first: the user's own, or everyone's if there are none."""
    arguments.output_dir = getattr(arguments, "output_dir", None)
    folder = choose_output_dir(arguments, context)
    found = list_own_launches(folder) or list_all_launches(folder)
    yield from (path.name for path in found if path.name.startswith(prefix))


def _complete_runs(prefix: str, arguments: argparse.Namespace, context: Context) -> Iterator[str]:
    """Yield ids of launches, and of runs: `.3`, `LAUNCH.3`, or of the only matching launch."""
    if "/" in prefix:
        return
    name, dot, _ = prefix.rpartition(".")
    launches = list(_complete_launches(name if dot else prefix, arguments, context))
    if not dot:
        yield from launches
    if dot and launches:
        launch = name if name in launches else launches[0]
        size = _count_runs(choose_output_dir(arguments, context) / launch)
        yield from (f"{name}.{index}" for index in range(min(size, _MOST_RUNS)))
    elif (
        len(launches) == 1 and (size := _count_runs(choose_output_dir(arguments, context) / launches[0])) > 1
    ):
        yield from (f"{launches[0]}.{index}" for index in range(min(size, _MOST_RUNS)))


def _count_runs(folder: Path) -> int:
    """Return how many runs a launch has: one line each in a small file."""
    return LaunchPaths(folder).signatures.read_bytes().count(b"\n")


def _complete_overrides(prefix: str, arguments: argparse.Namespace, context: Context) -> Iterator[str]:
    """Yield `group=option` from the configuration folders, and the keys that hpckit reads."""
    folders = list_conf_folders(
        ComposeRequest(
            config_dir=getattr(arguments, "config_dir", None), environ=context.environ, cwd=context.cwd
        )
    )
    group, equals, value = prefix.partition("=")
    if equals:
        chosen = value[: value.rfind(",") + 1]
        files = (file for folder in folders for file in sorted((folder / group).glob("*.yaml")))
        yield from dict.fromkeys(f"{group}={chosen}{file.stem}" for file in files)
        return
    groups = (
        f"{place.relative_to(folder)}="
        for folder in folders
        for place in sorted(folder.rglob("*"))
        if place.is_dir() and any(place.glob("*.yaml"))
    )
    yield from dict.fromkeys(groups)
    yield from (f"{key}=" for key in _list_config_keys(LaunchConfig) if "." not in key or "." in prefix)


def _complete_launch_or_override(
    prefix: str, arguments: argparse.Namespace, context: Context
) -> Iterator[str]:
    offer = _complete_overrides if getattr(arguments, "env", False) else _complete_launches
    yield from offer(prefix, arguments, context)


def _list_config_keys(kind: Any, above: str = "") -> Iterator[str]:
    hints = get_type_hints(kind)
    for name in field_names(kind):
        if is_dataclass(hints[name]):
            yield from _list_config_keys(hints[name], f"{above}{name}.")
        else:
            yield f"{above}{name}"


def _complete_states(prefix: str, _: argparse.Namespace, __: Context) -> Iterator[str]:
    chosen = prefix[: prefix.rfind(",") + 1]
    yield from (f"{chosen}{state}" for state in RunState)


_OFFERS: dict[str, Words] = {
    "LAUNCH": _complete_launches,
    "LAUNCH|RUN": _complete_runs,
    "[RUN] FAULT": _complete_runs,
    "OVERRIDE": _complete_overrides,
    "LAUNCH|OVERRIDE": _complete_launch_or_override,
    "STATE[,STATE]": _complete_states,
}
"""By the metavar of an argument."""
