"""The first two sections: what holds runs back, and how they ended. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from heapq import nlargest
from typing import Any

from hpckit.features.reporting.document import ReportDocument
from hpckit.features.reporting.page_parts import (
    Badge,
    Cell,
    Figure,
    Section,
    Table,
    duration,
    share,
    table,
)
from hpckit.features.reporting.words import (
    best_words,
    no_verdict_words,
    runs_words,
    short_name,
    summary_words,
    verdict_runs,
)
from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.counted import counted, steps_text
from hpckit.model.goodput import Interruption
from hpckit.model.moment import local_moment
from hpckit.report.account import first_line
from hpckit.report.diagnosis import verdict_groups, verdict_head
from hpckit.report.failures import (
    FailureGroup,
    failure_line,
    failure_words,
    group_failures,
    user_traceback,
)
from hpckit.report.rows import RunRow, count_states

SHOWN_FAILURES = 20
SHOWN_REMARKS = 10
SHOWN_INTERRUPTIONS = 20


def verdicts_section(document: ReportDocument) -> Section:
    """Return what holds runs back, in words, with numbers and remedies."""
    values = {
        "summary": summary_words(document),
        "verdicts": [
            {
                "worst": group.worst,
                "head": verdict_head(group.worst),
                "runs": verdict_runs(group, len(document.rows)),
            }
            for group in verdict_groups(document.rows)
        ],
        "no_verdict": no_verdict_words(document.rows),
    }
    return Section(name="verdicts", title="Verdicts", values=values)


def outcome_section(document: ReportDocument) -> Section:
    """Return the states of runs, their failures by cause, the best run, and a table of all."""
    rows = document.rows
    groups = group_failures(rows)
    values = {
        "states": count_states(row.state for row in rows),
        "best": best_words(document),
        "failures": [_failure(group) for group in groups[:SHOWN_FAILURES]],
        "failures_left": len(groups) - SHOWN_FAILURES,
        "causes": _causes(rows),
        "latest": _latest_interruptions(document),
        "remarks": list(_remarks(rows)),
        "runs": _runs_table(document),
    }
    return Section(name="outcome", title="Outcome", values=values)


def _failure(group: FailureGroup) -> Mapping[str, Any]:
    failure, run = group.failure, group.rows[0].run
    alone = len(group.rows) == 1
    return {
        "head": f"{run}: {failure_words(failure)}" if alone else failure_line(group),
        "several": not alone,
        "run": run,
        "traceback": "\n".join(user_traceback(failure.traceback or "")),
    }


def _interruptions(rows: Sequence[RunRow]) -> list[tuple[RunRow, Interruption]]:
    """Return the interruptions that runs survived or ended with."""
    return [
        (row, one) for row in rows if row.goodput is not None for one in row.goodput.interruptions
    ]


def _causes(rows: Sequence[RunRow]) -> Table:
    counts: dict[tuple[str, bool], list[RunRow]] = {}
    for row, one in _interruptions(rows):
        counts.setdefault((one.cause.value, one.planned), []).append(row)
    lines = [
        (cause, "planned" if planned else "failure", len(some), runs_words(_once(some)))
        for (cause, planned), some in sorted(counts.items(), key=lambda one: -len(one[1]))
    ]
    return table(("cause", "kind", "how often", "runs"), lines)


def _latest_interruptions(document: ReportDocument) -> Table:
    """Return the latest interruptions, each with when, where and why, the newest first."""
    every = _interruptions(document.rows)
    latest = nlargest(SHOWN_INTERRUPTIONS, every, key=lambda pair: pair[1].at)
    lines = [
        (
            local_moment(one.at),
            short_name(document, row.run),
            one.attempt,
            one.round,
            one.rank,
            one.node,
            "" if one.step is None else str(one.step),
            "" if one.action is None else one.action.replace("_", " "),
            first_line(one.message),
        )
        for row, one in latest
    ]
    header = ("when", "run", "attempt", "round", "rank", "node", "step", "then", "what")
    return table(header, lines)


def _once(rows: Sequence[RunRow]) -> list[RunRow]:
    return list({row.run: row for row in rows}.values())


def _remarks(rows: Sequence[RunRow]) -> Iterator[str]:
    """Yield what status would note below its table, each text once."""
    texts: dict[str, list[RunRow]] = {}
    for row in rows:
        for text in (row.blocked, row.note, *row.warnings[-1:]):
            if text:
                texts.setdefault(text, []).append(row)
    for text, some in list(texts.items())[:SHOWN_REMARKS]:
        yield f"{runs_words(some)}: {text}"
    left = len(texts) - SHOWN_REMARKS
    if left > 0:
        yield f"… and {counted(left, 'other remark')}"


def _runs_table(document: ReportDocument) -> Table:
    header = ("run", "state", "cause", "attempts", "steps", "time", "goodput", "nodes")
    body = [
        (short_name(document, row.run), *_run_cells(row, document.written_at))
        for row in document.rows
    ]
    return table(header, body)


def _run_cells(row: RunRow, now: datetime) -> Sequence[Cell]:
    parts = None if row.goodput is None else row.goodput.parts
    return (
        Badge(f"{row.state} ({row.early})" if row.early else row.state.value, row.state),
        "" if row.failure is None else row.failure.cause.value,
        row.attempt,
        Figure(steps_text(row.step, row.total), None if row.step is None else float(row.step)),
        duration(row.elapsed(now) if parts is None else parts.wall),
        share(None if row.goodput is None else row.goodput.goodput),
        compress_nodes(row.nodes),
    )
