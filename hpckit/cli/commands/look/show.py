"""`hpckit show`: what a run is, and what it was frozen with."""

from __future__ import annotations

import argparse

from hpckit.cli.options import (
    add_common_options,
    add_flag,
    add_fresh_option,
    add_launch_or_run_argument,
    resolve_reference_to_show,
)
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.record.launches import load_run_settings
from hpckit.record.lookup import Selection
from hpckit.report.description import description_to_json, format_config_as_yaml, render_description_page
from hpckit.views.describe import describe_selected_run_or_launch
from hpckit.views.freshness import Freshness

EPILOG = """\
examples:
  hpckit show digits.3
  hpckit show digits.3 --config > digits.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `show`."""
    add_launch_or_run_argument(parser)
    add_flag(parser, "--config", "print its configuration as YAML, and nothing else")
    add_fresh_option(parser)
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show a run, or what the runs of a launch have in common; always returns 0."""
    selection = resolve_reference_to_show(arguments, context)
    if arguments.config:
        _show_config(selection, arguments, context)
        return 0
    about = describe_selected_run_or_launch(selection, context, Freshness(now=arguments.fresh))
    if arguments.json:
        context.say_json(description_to_json(about))
    else:
        show_page(render_description_page(about, context.now()), context, paged=True)
    return 0


def _show_config(selection: Selection, arguments: argparse.Namespace, context: Context) -> None:
    launch, index = selection.launch, selection.index
    if index is None and len(launch.runs) > 1:
        raise UsageError(
            f"{launch.id} has {len(launch.runs)} runs, each with a configuration of its own",
            hint=f"name one, such as `hpckit show {launch.runs[0].id} --config`",
        )
    _, config = load_run_settings(launch, index or 0)
    if arguments.json:
        context.say_json(config)
    else:
        context.say(format_config_as_yaml(config).rstrip("\n"))
