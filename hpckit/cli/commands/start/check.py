"""`hpckit check`: whether a launch could run, without launching it.

Writes and submits nothing. Functions of runs with a layout are run up to their first training step.
"""

from __future__ import annotations

import argparse

from hpckit.cli.compose_options import add_composing, compose_request, recorded_words, show_instead
from hpckit.cli.launch_output import WOULD_ASK, say_known
from hpckit.cli.options import add_flag
from hpckit.context import Context
from hpckit.report.checked import check_document, check_lines

TAKES_COMMAND = True
"""Words after `--` are a command to run, not overrides."""


EPILOG = """\
examples:
  hpckit check -- python train.py --lr 0.1
  hpckit check experiment=mine -m lr=0.1,0.2 resources=one_gpu
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select a configuration, as for `launch`."""
    add_composing(parser)
    add_flag(
        parser,
        "--no-model",
        "do not run functions up to their first step to check models in their layouts",
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Check and print the findings; returns 2 if the launch would be refused."""
    if show_instead(arguments, context):
        return 0
    from hpckit.operations import check, deduplicate, local, prepare  # noqa: PLC0415  # they import Hydra

    request = compose_request(arguments, context)
    words = recorded_words(arguments, context)
    prepared = prepare.prepare(request, words, context, checked=True, quiet=arguments.json)
    prepared = prepare.with_destinations(prepared, context)
    local.refuse_if_ruled_out(prepared.plan.cluster.kind, context.environ)
    division = deduplicate.divide(prepared, context)
    say_known(division, context, prepared.plan.cluster.kind, dry=True)
    if division.repeats:
        context.note(WOULD_ASK)
    depth = check.ModelDepth.nothing if arguments.no_model else check.ModelDepth.everything
    checked = check.check_launch(prepared, context, models=depth)
    if arguments.json:
        context.say_json(check_document(prepared.plan, checked))
    else:
        for line in check_lines(prepared.plan, checked):
            context.say(line)
    return 2 if checked.errors else 0
