"""A report for others than browsers: a short Markdown text, and one JSON object. Pure.

The Markdown is for a terminal, a pull request or a job summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hpckit.features.reporting.document import (
    ReportDocument,
    best_words,
    no_verdict_words,
    summary_words,
    verdict_runs,
    written_words,
)
from hpckit.model.counted import counted
from hpckit.model.plain import plain_fields, to_plain
from hpckit.patterns import lazy_pattern
from hpckit.report.account import PART_LABELS, span_text, summed_parts
from hpckit.report.best import best_object, best_row
from hpckit.report.description import description_document
from hpckit.report.diagnosis import verdict_groups, verdict_head
from hpckit.report.escape import escaped, escaped_cell
from hpckit.report.failures import failure_line, group_failures, group_object, user_traceback
from hpckit.report.machine import run_object
from hpckit.report.results import shown_cells, shown_header
from hpckit.report.text import number, percent

SHOWN_ROWS = 50
SHOWN_FAILURES = 5
_SIGNS = lazy_pattern(r"([\\`*_\[\]<>|#&~$!])")


def markdown_text(document: ReportDocument) -> str:
    """Return the text; names and messages of users are text in it, never markup."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: ReportDocument) -> Iterator[str]:
    yield f"# {_inline(document.title)}"
    yield ""
    for line in (*summary_words(document), *best_words(document)):
        yield f"- {_inline(line)}"
    yield f"- {_inline(written_words(document))}"
    yield from ("", "## Verdicts", "")
    yield from _verdicts(document)
    yield from _failures(document)
    yield from _times(document)
    yield from _results(document)
    yield from ("", "## How to run it again", "")
    for launch in document.launches:
        yield f"    hpckit rerun {escaped_cell(launch.reference)}"


def _verdicts(document: ReportDocument) -> Iterator[str]:
    groups = verdict_groups(document.rows)
    if not groups:
        yield _inline(no_verdict_words(document.rows))
    for group in groups:
        which = verdict_runs(group, len(document.rows))
        about = f" ({_inline(which)})" if which else ""
        yield f"- **{_inline(verdict_head(group.worst))}**{about}: {_inline(group.worst.message)}"
        yield f"  {_inline(group.worst.remedy)}"


def _failures(document: ReportDocument) -> Iterator[str]:
    groups = group_failures(document.rows)
    if not groups:
        return
    yield from ("", "## Failures", "")
    for group in groups[:SHOWN_FAILURES]:
        yield f"- {_inline(failure_line(group))}"
        traceback = user_traceback(group.failure.traceback or "")
        if traceback:
            yield from _fenced(traceback)
    left = len(groups) - SHOWN_FAILURES
    if left > 0:
        yield f"- … and {counted(left, 'other failure')}"


def _fenced(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines as a block of code, in a fence that none of them can close."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield ""
    yield f"  {fence}text"
    yield from (f"  {escaped(line)}" for line in lines)
    yield f"  {fence}"
    yield ""


def _times(document: ReportDocument) -> Iterator[str]:
    parts = summed_parts(row.goodput for row in document.rows if row.goodput is not None)
    if not parts.wall:
        return
    yield from ("", "## Where the time went", "")
    spans = ((label, getattr(parts, name)) for name, label in PART_LABELS.items())
    yield from _table(
        ("part", "time", "of wall"),
        [
            *(
                (label, span_text(span), percent(span / parts.wall))
                for label, span in spans
                if span
            ),
            ("wall", span_text(parts.wall), ""),
        ],
    )


def _results(document: ReportDocument) -> Iterator[str]:
    results = document.results
    yield from ("", "## Runs", "")
    yield from _table(shown_header(results), list(shown_cells(results))[:SHOWN_ROWS])
    left = len(results.rows) - SHOWN_ROWS
    if left > 0:
        yield from ("", f"{counted(left, 'more run')}: `hpckit results` has all")


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield _row(map(_inline, head))
    yield _row("---" for _ in head)
    for row in rows:
        yield _row(_inline(number(value)) for value in row)


def _row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _inline(text: str) -> str:
    """Return a text on one line, with every sign of Markdown's taken as itself."""
    return _SIGNS.sub(r"\\\1", escaped_cell(text))


def report_object(document: ReportDocument) -> dict[str, Any]:
    """Return the document that `report --json` prints; fields may only be added."""
    goal = document.goal
    best = None if goal is None else best_row(document.results.rows, goal)
    return {
        "title": document.title,
        "written_at": to_plain(document.written_at),
        "launches": [
            {**description_document(launch.about), "packages": dict(launch.packages)}
            for launch in document.launches
        ],
        "runs": [run_object(row) for row in document.rows],
        "failures": [group_object(group) for group in group_failures(document.rows)],
        "best": None if goal is None else best_object(best, goal),
        "goal": to_plain(goal),
        "overrides": list(document.results.overrides),
        **plain_fields(document, "timelines", "curves", "metrics_left_out"),
        "gpu_activity": to_plain(document.activity),
        **plain_fields(document, "gpus", "ranks"),
    }
