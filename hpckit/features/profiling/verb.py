"""`hpckit profile`: where the time of a running run's steps goes; the run continues."""

from __future__ import annotations

import argparse

from hpckit.cli.options import add_common, add_flag, add_reference, find_named
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.profiling.operations import ProfileOrder, RunProfile, last_profile, profile_run
from hpckit.features.profiling.text import profile_object, profile_text
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
    add_reference(parser)
    parser.add_argument(
        "--steps", metavar="N", type=int, help=f"how many steps, 1 to 1000 (default: {_STEPS})"
    )
    parser.add_argument(
        "--ranks", metavar="LIST", help=f"such as 0,3 or 0-3, or all (default: {_RANKS})"
    )
    parser.add_argument(
        "--tool",
        choices=[tool.value for tool in ProfileTool],
        help="torch (default), or nsys, if the ranks were started below it "
        "(observe.profile.tool=nsys)",
    )
    add_flag(parser, "--no-wait", "return once the ranks are asked; --last shows the profile later")
    add_flag(parser, "--last", "show the run's latest profile, and make none")
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a profile; returns 0, 1 if no rank was profiled. Raises HpckitError."""
    found = _found(arguments, context)
    _, _, answer, ranks = found
    if arguments.json:
        context.say_json(profile_object(*found))
    else:
        context.say(profile_text(*found))
    return 0 if not answer.done or any(rank.result.steps for rank in ranks) else 1


def _found(arguments: argparse.Namespace, context: Context) -> RunProfile:
    selection = find_named(arguments, context)
    asked = (arguments.steps, arguments.ranks, arguments.tool)
    if arguments.last:
        if arguments.no_wait or any(word is not None for word in asked):
            raise UsageError(
                "--last shows a profile that is there: it takes no --steps, --ranks, --tool or "
                "--no-wait",
                hint="without --last a new profile is made",
            )
        return last_profile(selection)
    order = ProfileOrder(
        steps=_STEPS if arguments.steps is None else arguments.steps,
        ranks=_RANKS if arguments.ranks is None else arguments.ranks,
        tool=ProfileTool(arguments.tool or ProfileTool.torch),
        wait=not arguments.no_wait,
    )
    return profile_run(selection, order, context)
