"""`hpckit profile`: where the time of a running run's steps goes; the run continues."""

from __future__ import annotations

import argparse

from hpckit.cli.options import (
    add_common_options,
    add_flag,
    add_launch_or_run_argument,
    resolve_reference_to_change,
)
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.profiling.operations import ProfileOrder, RunProfile, find_last_profile, profile_run
from hpckit.features.profiling.text import format_profile, profile_to_json
from hpckit.model.settings import ProfileTool

EPILOG = """\
examples:
  hpckit profile digits.3                          5 steps of rank 0
  hpckit profile digits.3 --steps 10 --ranks 0,3   of two ranks, which show who waits
  hpckit profile digits.3 --last                   the latest one again, also of an ended run

The ranks record at step boundaries and continue. ui.perfetto.dev opens the traces.
"""

_STEPS = 5
_RANKS = "0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `profile`."""
    add_launch_or_run_argument(parser)
    parser.add_argument(
        "--steps", metavar="N", type=int, help=f"how many steps, 1 to 1000 (default: {_STEPS})"
    )
    parser.add_argument("--ranks", metavar="LIST", help=f"such as 0,3 or 0-3, or all (default: {_RANKS})")
    parser.add_argument(
        "--tool",
        choices=[tool.value for tool in ProfileTool],
        help="torch (default), or nsys, if the ranks were started below it (observe.profile.tool=nsys)",
    )
    add_flag(parser, "--no-wait", "return once the ranks are asked; --last shows the profile later")
    add_flag(parser, "--last", "show the run's latest profile, and make none")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a profile; returns 0, 1 if no rank was profiled. Raises HpckitError."""
    found = _find_or_make_profile(arguments, context)
    _, _, answer, ranks = found
    if arguments.json:
        context.say_json(profile_to_json(*found))
    else:
        context.say(format_profile(*found))
    return 0 if not answer.done or any(rank.result.steps for rank in ranks) else 1


def _find_or_make_profile(arguments: argparse.Namespace, context: Context) -> RunProfile:
    selection = resolve_reference_to_change(arguments, context)
    asked = (arguments.steps, arguments.ranks, arguments.tool)
    if arguments.last:
        if arguments.no_wait or any(word is not None for word in asked):
            raise UsageError(
                "--last shows an existing profile: it takes no --steps, --ranks, --tool or --no-wait",
                hint="leave --last out to make a new profile",
            )
        return find_last_profile(selection)
    order = ProfileOrder(
        steps=_STEPS if arguments.steps is None else arguments.steps,
        ranks=_RANKS if arguments.ranks is None else arguments.ranks,
        tool=ProfileTool(arguments.tool or ProfileTool.torch),
        wait=not arguments.no_wait,
    )
    return profile_run(selection, order, context)
