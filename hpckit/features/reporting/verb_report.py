"""`hpckit report`: how runs ended and why, in one HTML file that works anywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.cli.gc_pause import pause_garbage_collector
from hpckit.cli.options import (
    add_fresh_option,
    add_launches_or_runs_argument,
    add_output_dir_option,
    choose_output_dir,
    parse_duration_to_seconds,
)
from hpckit.context import Context
from hpckit.errors import UsageError, import_optional
from hpckit.features.reporting.forms import format_markdown_report, report_to_json
from hpckit.features.reporting.gather import build_report
from hpckit.features.reporting.page import render_page_chunks
from hpckit.model.counted import format_count
from hpckit.operations.output_file import REPORT, check_file_suffix, check_output_file, write_output_file
from hpckit.views.across_launches import find_named_runs
from hpckit.views.freshness import Freshness

_LEAST_REFRESH_S = 1.0
_MOST_REFRESH_S = 24 * 3600
_HTML = (".html", ".htm")

EPILOG = """\
examples:
  hpckit report   the latest launch, as LAUNCH.html
  hpckit report digits.3 -o digits.html
  hpckit report digits --markdown
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report`."""
    add_launches_or_runs_argument(parser)
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
        type=parse_duration_to_seconds,
        help="have the page reload itself at this interval, such as 60 or 2m, for a file that is "
        "written again",
    )
    add_fresh_option(parser)
    add_output_dir_option(parser)


@pause_garbage_collector()
def run(arguments: argparse.Namespace, context: Context) -> int:
    """Write a report, and say on standard error where it is; always returns 0."""
    target = None if arguments.to is None else context.cwd / Path(arguments.to).expanduser()
    writes_html = target is not None or not (arguments.markdown or arguments.json)
    if arguments.refresh is not None and not writes_html:
        raise UsageError("--refresh is for HTML, and none is written", hint="name its file with -o PATH")
    _check_target_and_refresh(target, arguments.refresh)
    plotly = read_plotly_script() if writes_html else ""
    named = find_named_runs(arguments.references, choose_output_dir(arguments, context), context)
    document = build_report(named, context, Freshness(now=arguments.fresh))
    if writes_html:
        name = document.title if len(document.launches) == 1 else "report"
        target = target or context.cwd / f"{name}.html"
        chunks = render_page_chunks(document, plotly, refresh_s=arguments.refresh)
        write_output_file(target, chunks, REPORT)
    if arguments.markdown:
        context.say(format_markdown_report(document).rstrip("\n"))
    if arguments.json:
        context.say_json(report_to_json(document))
    if writes_html:
        context.note(f"reported {format_count(len(document.rows), 'run')} to {target}")
    return 0


def _check_target_and_refresh(target: Path | None, refresh_s: float | None) -> None:
    """Raise UsageError for a page that cannot be written, or would load itself too often."""
    if refresh_s is not None and not _LEAST_REFRESH_S <= refresh_s <= _MOST_REFRESH_S:
        raise UsageError(
            f"--refresh is {refresh_s:g}; it is in seconds, from {_LEAST_REFRESH_S:g} to "
            f"{_MOST_REFRESH_S} (a day)"
        )
    if target is not None:
        if not target.is_dir():
            check_file_suffix(target, _HTML, "report in HTML")
        check_output_file(target, REPORT)


def read_plotly_script() -> str:
    """Return plotly.js; raises UsageError without the Python package that brings it."""
    hint = "pip install '.[report]' in hpckit's checkout; --markdown and --json need nothing"
    text: str = import_optional("plotly.offline", "a report in HTML", hint).get_plotlyjs()
    return text
