"""The options that choose a configuration: the only ones that concern Hydra."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hpckit.cli.options import add_json_option
from hpckit.cli.parsing import exclude_options
from hpckit.config.request import PRIMARY, ComposeRequest
from hpckit.context import Context
from hpckit.errors import UsageError

CONFIG_NAME = "HPCKIT_CONFIG_NAME"
"""Environment variable with the primary configuration, used without --config-name."""


def add_compose_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select a configuration."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="Hydra's overrides: key=value, group=choice, +key=value, ~key",
    )
    parser.add_argument("-m", "--multirun", action="store_true", help="sweep: x=1,2 y=range(0,3)")
    add_config_source_options(parser)
    parser.add_argument(
        "--cfg",
        nargs="?",
        const="",
        metavar="KEY",
        help="print the composed configuration, or the part under KEY, and do nothing else",
    )
    parser.add_argument(
        "--info",
        nargs="?",
        const="",
        metavar="WHAT",
        help="print where configuration comes from (searchpath, groups) and do nothing else",
    )
    add_json_option(parser)
    hint = "`hpckit launch --dry-run --json` has the runs, `hpckit show RUN --config --json` a configuration"
    exclude_options(parser, "--json", "--cfg", "--info", hint=hint)
    parser.usage = f"{parser.prog} [OVERRIDE ...] [options] [-- COMMAND ...]"


def add_config_source_options(parser: argparse.ArgumentParser) -> None:
    """Add where the configuration comes from; the rest of a request has its defaults."""
    parser.set_defaults(cfg=None, info=None, multirun=False, command=None)
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        type=Path,
        help="your own conf/ (default: $HPCKIT_CONFIG_DIR, else ./conf if it exists)",
    )
    parser.add_argument(
        "--config-name",
        metavar="NAME",
        help=f"the primary configuration (default: ${CONFIG_NAME}, else {PRIMARY})",
    )


def show_config_if_asked(arguments: argparse.Namespace, context: Context) -> bool:
    """Print what `--cfg` or `--info` ask for; return False if neither was given."""
    if arguments.cfg is None and arguments.info is None:
        return False
    # Imported here: Hydra is slow to import, and `--help` does not need it.
    from hpckit.config.show import render_config, render_config_sources  # noqa: PLC0415

    request = build_compose_request(arguments, context)
    if arguments.cfg is not None:
        context.stdout.write(render_config(request, package=_parse_config_part_to_show(arguments.cfg)))
    if arguments.info is not None:
        context.stdout.write(
            render_config_sources(request, _parse_config_part_to_show(arguments.info) or "all")
        )
    return True


def build_compose_request(
    arguments: argparse.Namespace, context: Context, *, more: Sequence[str] = ()
) -> ComposeRequest:
    """Return the request for these words, and for `more` overrides after them."""
    command = arguments.command
    if command is not None and not command:
        raise UsageError(
            "no command follows --",
            hint=f"for example: hpckit {arguments.words[0]} -- python train.py --lr 0.1",
        )
    swallowed = [word for word in (arguments.cfg, arguments.info) if _is_override(word)]
    return ComposeRequest(
        overrides=(*swallowed, *arguments.overrides, *more),
        command=None if command is None else tuple(command),
        config_dir=arguments.config_dir,
        config_name=_choose_config_name(arguments, context) or None,
        multirun=arguments.multirun,
        environ=context.environ,
        cwd=context.cwd,
    )


def _choose_config_name(arguments: argparse.Namespace, context: Context) -> str | None:
    named: str | None = arguments.config_name or context.environ.get(CONFIG_NAME)
    return named


def list_words_to_record(arguments: argparse.Namespace, context: Context) -> tuple[str, ...]:
    """Return the words as typed, plus the --config-name that came from the environment variable."""
    words: tuple[str, ...] = arguments.words
    name = _choose_config_name(arguments, context)
    if name is None or arguments.config_name:
        return words
    return (*words[:1], f"--config-name={name}", *words[1:])


def _is_override(word: str | None) -> bool:
    """Whether a word after `--cfg` is an override that argparse took for its value."""
    return word is not None and ("=" in word or word.startswith("~"))


def _parse_config_part_to_show(word: str) -> str:
    # In Hydra's own --cfg, `job` means the whole configuration.
    return "" if _is_override(word) or word == "job" else word
