"""Writes a report of launches and runs: one HTML file, and the same as Markdown or JSON."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.operations.output_file import (
    REPORT,
    check_output_file,
    check_suffix,
    write_output_file,
)
from hpckit.report.document.model import ReportDocument
from hpckit.report.html.page import page_chunks
from hpckit.values import dataclass
from hpckit.views.across_launches import named_runs
from hpckit.views.freshness import Freshness
from hpckit.views.report.gather import report_document

_LEAST_REFRESH_S = 1.0
_MOST_REFRESH_S = 24 * 3600
_HTML = (".html", ".htm")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """What to report on, and the files to write; paths are absolute.

    `html` is null for a name in the current folder, made from the launch or run; `writes_html` is
    false if only other forms were asked for.
    """

    references: Sequence[str]
    base: Path
    html: Path | None
    writes_html: bool
    refresh_s: float | None = None
    fresh: bool = False


def write_report(request: ReportRequest, context: Context) -> tuple[ReportDocument, Path | None]:
    """Return the report, and the HTML file that was written; raises UsageError, NotFoundError."""
    seconds = request.refresh_s
    if seconds is not None and not _LEAST_REFRESH_S <= seconds <= _MOST_REFRESH_S:
        raise UsageError(
            f"--refresh is {seconds:g}; it is in seconds, from {_LEAST_REFRESH_S:g} to "
            f"{_MOST_REFRESH_S} (a day)"
        )
    if request.html is not None:
        if not request.html.is_dir():
            check_suffix(request.html, _HTML, "report in HTML")
        check_output_file(request.html, REPORT)
    plotly = plotly_script() if request.writes_html else ""
    named = named_runs(request.references, request.base, context)
    document = report_document(named, context, Freshness(now=request.fresh))
    target = None
    if request.writes_html:
        target = request.html or _default_target(document, context)
        chunks = page_chunks(document, plotly, refresh_s=request.refresh_s)
        write_output_file(target, chunks, REPORT)
    return document, target


def plotly_script() -> str:
    """Return plotly.js; raises UsageError without the Python package that brings it."""
    try:
        text: str = importlib.import_module("plotly.offline").get_plotlyjs()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"a report in HTML needs {error.name}, which is not installed",
            hint="pip install 'hpckit-slurm[report]'; --markdown and --json need nothing",
        ) from error
    return text


def _default_target(document: ReportDocument, context: Context) -> Path:
    name = document.title if len(document.launches) == 1 else "report"
    return context.cwd / f"{name}.html"
