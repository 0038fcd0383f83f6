"""`hpckit diff`: the differences between two runs or two launches."""

from __future__ import annotations

import argparse

from hpckit.cli.options import add_common, add_fresh, output_dir
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.record.lookup import find_evidence
from hpckit.report.comparison import comparison_document, comparison_page
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
    add_fresh(parser)
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the differences; always returns 0."""
    base = output_dir(arguments, context)
    old, new = (
        find_evidence(reference, base, cwd=context.cwd)
        for reference in (arguments.old, arguments.new)
    )
    found = compare_selections(
        old, new, context, Freshness(now=arguments.fresh), code=arguments.code
    )
    if arguments.json:
        context.say_json(comparison_document(found))
    else:
        show_page(comparison_page(found), context, paged=True)
    return 0
