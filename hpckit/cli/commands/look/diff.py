"""`hpckit diff`: the differences between two runs or two launches."""

from __future__ import annotations

import argparse

from hpckit.cli.options import add_common_options, add_fresh_option, choose_output_dir
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.record.lookup import find_launch_of_any_owner
from hpckit.report.comparison import comparison_to_json, render_comparison_page
from hpckit.views.compare import compare_selections
from hpckit.views.freshness import Freshness

EPILOG = """\
examples:
  hpckit diff .0 .1             two runs of the latest launch
  hpckit diff @-2 @-1 --code    two launches, with the lines of code that differ

The exit code is 0 whether or not they differ; `--json` has the differences for programs.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `diff`."""
    for name, which in (("old", "one"), ("new", "other")):
        parser.add_argument(
            name, metavar="LAUNCH|RUN", help=f"the {which} run or launch: id, name, .3, @-2, folder"
        )
    parser.add_argument("--code", action="store_true", help="also the lines of code that differ")
    add_fresh_option(parser)
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the differences; always returns 0."""
    base = choose_output_dir(arguments, context)
    old, new = (
        find_launch_of_any_owner(reference, base, cwd=context.cwd)
        for reference in (arguments.old, arguments.new)
    )
    found = compare_selections(old, new, context, Freshness(now=arguments.fresh), code=arguments.code)
    if arguments.json:
        context.say_json(comparison_to_json(found))
    else:
        show_page(render_comparison_page(found), context, paged=True)
    return 0
