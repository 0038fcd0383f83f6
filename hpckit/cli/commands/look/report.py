"""`hpckit report`: how runs ended and why, in one HTML file that works anywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.cli.gc_pause import gc_paused
from hpckit.cli.options import add_fresh, add_output_dir, add_references, output_dir
from hpckit.cli.value_types import seconds
from hpckit.context import Context
from hpckit.model.counted import counted
from hpckit.operations.report import ReportRequest, write_report
from hpckit.report.document.markdown import markdown_text
from hpckit.report.document.plain import report_object

EPILOG = """\
examples:
  hpckit report   the latest launch, as LAUNCH.html
  hpckit report digits.3 -o digits.html
  hpckit report digits --markdown
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report`."""
    add_references(parser)
    parser.add_argument(
        *("-o", "--to"),
        metavar="PATH",
        help="the HTML file to write (default: LAUNCH.html or RUN.html in this folder; without -o, "
        "--markdown and --json write no HTML)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print a short Markdown text")
    form.add_argument("--json", action="store_true", help="print all of it as one JSON object")
    parser.add_argument(
        "--refresh",
        metavar="TIME",
        type=seconds,
        help="make the page load itself again every so often, such as 60 or 2m, for a file that is "
        "written again",
    )
    add_fresh(parser)
    add_output_dir(parser)


@gc_paused()
def run(arguments: argparse.Namespace, context: Context) -> int:
    """Write a report, and say on standard error where it is; always returns 0."""
    target = None if arguments.to is None else context.cwd / Path(arguments.to).expanduser()
    request = ReportRequest(
        references=arguments.references,
        base=output_dir(arguments, context),
        html=target,
        writes_html=target is not None or not (arguments.markdown or arguments.json),
        refresh_s=arguments.refresh,
        fresh=arguments.fresh,
    )
    document, html = write_report(request, context)
    if arguments.markdown:
        context.say(markdown_text(document).rstrip("\n"))
    if arguments.json:
        context.say_json(report_object(document))
    if html is not None:
        context.note(f"reported {counted(len(document.rows), 'run')} to {html}")
    return 0
