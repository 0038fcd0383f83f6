"""A report for others than browsers: a short Markdown text, and one JSON object. Pure.

The Markdown is for a terminal, a pull request or a job summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hpckit.features.reporting.document import (
    ReportDocument,
    explain_no_verdict,
    format_best_run,
    format_runs_of_verdict,
    format_summary_sentences,
    format_written_by,
)
from hpckit.model.counted import format_count
from hpckit.model.plain import attributes_to_json, to_plain
from hpckit.patterns import lazy_pattern
from hpckit.report.account import PART_LABELS, format_short_duration, sum_time_parts
from hpckit.report.best import best_row_to_json, find_best_row
from hpckit.report.description import description_to_json
from hpckit.report.diagnosis import format_verdict_kind_and_severity, group_verdicts
from hpckit.report.escape import escape_controls, escape_table_cell
from hpckit.report.failures import (
    failure_group_to_json,
    format_failure_group_line,
    group_failures,
    shorten_user_traceback,
)
from hpckit.report.machine import run_row_to_json
from hpckit.report.results import list_shown_column_names, list_shown_row_values
from hpckit.report.text import format_number, format_share_percent

SHOWN_ROWS = 50
SHOWN_FAILURES = 5
_SIGNS = lazy_pattern(r"([\\`*_\[\]<>|#&~$!])")


def format_markdown_report(document: ReportDocument) -> str:
    """Return the text; names and messages of users are text in it, never markup."""
    return "\n".join(_format_report_lines(document)) + "\n"


def _format_report_lines(document: ReportDocument) -> Iterator[str]:
    yield f"# {_escape_markdown(document.title)}"
    yield ""
    for line in (*format_summary_sentences(document), *format_best_run(document)):
        yield f"- {_escape_markdown(line)}"
    yield f"- {_escape_markdown(format_written_by(document))}"
    yield from ("", "## Verdicts", "")
    yield from _format_verdicts(document)
    yield from _format_failures(document)
    yield from _format_wall_time_breakdown(document)
    yield from _format_results(document)
    yield from ("", "## How to run it again", "")
    for launch in document.launches:
        yield f"    hpckit rerun {escape_table_cell(launch.reference)}"


def _format_verdicts(document: ReportDocument) -> Iterator[str]:
    groups = group_verdicts(document.rows)
    if not groups:
        yield _escape_markdown(explain_no_verdict(document.rows))
    for group in groups:
        which = format_runs_of_verdict(group, len(document.rows))
        about = f" ({_escape_markdown(which)})" if which else ""
        head, text = format_verdict_kind_and_severity(group.worst), group.worst.message
        yield f"- **{_escape_markdown(head)}**{about}: {_escape_markdown(text)}"
        yield f"  {_escape_markdown(group.worst.remedy)}"


def _format_failures(document: ReportDocument) -> Iterator[str]:
    groups = group_failures(document.rows)
    if not groups:
        return
    yield from ("", "## Failures", "")
    for group in groups[:SHOWN_FAILURES]:
        yield f"- {_escape_markdown(format_failure_group_line(group))}"
        traceback = shorten_user_traceback(group.failure.traceback or "")
        if traceback:
            yield from _fence_code_block(traceback)
    left = len(groups) - SHOWN_FAILURES
    if left > 0:
        yield f"- … and {format_count(left, 'other failure')}"


def _fence_code_block(lines: Sequence[str]) -> Iterator[str]:
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield ""
    yield f"  {fence}text"
    yield from (f"  {escape_controls(line)}" for line in lines)
    yield f"  {fence}"
    yield ""


def _format_wall_time_breakdown(document: ReportDocument) -> Iterator[str]:
    parts = sum_time_parts(row.goodput for row in document.rows if row.goodput is not None)
    if not parts.wall:
        return
    yield from ("", "## Where the time went", "")
    spans = ((label, getattr(parts, name)) for name, label in PART_LABELS.items())
    yield from _format_table(
        ("part", "time", "of wall"),
        [
            *(
                (label, format_short_duration(span), format_share_percent(span / parts.wall))
                for label, span in spans
                if span
            ),
            ("wall", format_short_duration(parts.wall), ""),
        ],
    )


def _format_results(document: ReportDocument) -> Iterator[str]:
    results = document.results
    yield from ("", "## Runs", "")
    yield from _format_table(
        list_shown_column_names(results), list(list_shown_row_values(results))[:SHOWN_ROWS]
    )
    left = len(results.rows) - SHOWN_ROWS
    if left > 0:
        yield from ("", f"{format_count(left, 'more run')}: `hpckit results` has all")


def _format_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield _format_row(map(_escape_markdown, head))
    yield _format_row("---" for _ in head)
    for row in rows:
        yield _format_row(_escape_markdown(format_number(value)) for value in row)


def _format_row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _escape_markdown(text: str) -> str:
    """Return a text on one line, with every sign of Markdown's taken as itself."""
    return _SIGNS.sub(r"\\\1", escape_table_cell(text))


def report_to_json(document: ReportDocument) -> dict[str, Any]:
    """Return the document that `report --json` prints; fields may only be added."""
    goal = document.goal
    best = None if goal is None else find_best_row(document.results.rows, goal)
    return {
        "title": document.title,
        "written_at": to_plain(document.written_at),
        "launches": [
            {**description_to_json(launch.about), "packages": dict(launch.packages)}
            for launch in document.launches
        ],
        "runs": [run_row_to_json(row) for row in document.rows],
        "failures": [failure_group_to_json(group) for group in group_failures(document.rows)],
        "best": None if goal is None else best_row_to_json(best, goal),
        "goal": to_plain(goal),
        "overrides": list(document.results.overrides),
        **attributes_to_json(document, "timelines", "curves", "metrics_left_out"),
        "gpu_activity": to_plain(document.activity),
        **attributes_to_json(document, "gpus", "ranks"),
    }
