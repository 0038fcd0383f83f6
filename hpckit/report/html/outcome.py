"""The first two sections: what holds runs back, and how they ended. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from heapq import nlargest

from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.counted import counted, steps_text
from hpckit.model.moment import local_moment
from hpckit.report.account import first_line, span_text
from hpckit.report.document.model import ReportDocument
from hpckit.report.document.words import (
    VerdictGroup,
    best_words,
    no_verdict_words,
    runs_words,
    short_name,
    summary_words,
    verdict_groups,
    verdict_head,
    verdict_runs,
)
from hpckit.report.failures import (
    FailureGroup,
    failure_line,
    failure_words,
    group_failures,
    user_traceback,
)
from hpckit.report.html.elements import Cell, Figure, Html, bullets, element, paragraph, table
from hpckit.report.html.section import Section, section
from hpckit.report.rows import RunRow, count_states
from hpckit.report.text import percent

SHOWN_FAILURES = 20
SHOWN_REMARKS = 10
SHOWN_INTERRUPTIONS = 20


def verdicts_section(document: ReportDocument) -> Section:
    """Return what holds runs back, in words, with numbers and remedies."""
    groups = verdict_groups(document.rows)
    parts: list[Html] = [bullets(summary_words(document))]
    parts += [_verdict(group, len(document.rows)) for group in groups]
    if not groups:
        parts.append(paragraph(no_verdict_words(document.rows), "remark"))
    return section("verdicts", "Verdicts", parts)


def _verdict(group: VerdictGroup, total: int) -> Html:
    which = verdict_runs(group, total)
    return element(
        "div",
        element("h3", verdict_head(group)),
        paragraph(group.worst.message),
        paragraph(group.worst.remedy, "remedy"),
        paragraph(which, "remark") if which else Html(),
        class_=f"verdict {group.worst.severity}",
    )


def outcome_section(document: ReportDocument) -> Section:
    """Return the states of runs, their failures by cause, the best run, and a table of all."""
    rows = document.rows
    counts = count_states(row.state for row in rows)
    tiles = (
        element("span", element("b", str(count)), f" {state}", class_=f"tile {state}")
        for state, count in counts.items()
    )
    parts: list[Html] = [element("p", *tiles, class_="tiles")]
    parts += [paragraph(line) for line in best_words(document)]
    groups = group_failures(rows)
    if groups:
        parts.append(element("h3", "Failures"))
        parts += [_failure(group) for group in groups[:SHOWN_FAILURES]]
        left = len(groups) - SHOWN_FAILURES
        more = (
            f"{counted(left, 'other failure')} not shown: `hpckit status --failed --json` has all."
        )
        parts += [paragraph(more, "remark")] if left > 0 else []
    parts += _interruptions(document)
    remarks = list(_remarks(rows))
    parts += [element("h3", "Remarks"), bullets(remarks)] if remarks else []
    parts += [element("h3", "Runs"), _runs_table(document)]
    return section("outcome", "Outcome", parts)


def _failure(group: FailureGroup) -> Html:
    failure = group.failure
    alone = len(group.rows) == 1
    head = f"{group.rows[0].run}: {failure_words(failure)}" if alone else failure_line(group)
    traceback = user_traceback(failure.traceback or "")
    more = Html() if alone else paragraph(f"For example {group.rows[0].run}.", "remark")
    code = element("pre", "\n".join(traceback), tabindex="0") if traceback else Html()
    log = paragraph(f"Whole log: hpckit logs {group.rows[0].run}", "remark")
    return element("div", paragraph(head), more, code, log, class_="failure")


def _interruptions(document: ReportDocument) -> list[Html]:
    """Return the interruptions that runs survived or ended with, by cause."""
    counts: dict[tuple[str, bool], list[RunRow]] = {}
    for row in document.rows:
        for one in () if row.goodput is None else row.goodput.interruptions:
            counts.setdefault((one.cause.value, one.planned), []).append(row)
    if not counts:
        return []
    lines = [
        (cause, "planned" if planned else "failure", len(some), runs_words(_once(some)))
        for (cause, planned), some in sorted(counts.items(), key=lambda one: -len(one[1]))
    ]
    header = ("cause", "kind", "how often", "runs")
    return [
        element("h3", "Interruptions of all attempts"),
        table(header, lines, label="interruptions"),
        *_latest_interruptions(document),
    ]


def _latest_interruptions(document: ReportDocument) -> list[Html]:
    """Return the latest interruptions, each with when, where and why, the newest first."""
    every = (
        (row, one)
        for row in document.rows
        for one in (() if row.goodput is None else row.goodput.interruptions)
    )
    latest = nlargest(SHOWN_INTERRUPTIONS, every, key=lambda pair: pair[1].at)
    lines = [
        (
            local_moment(one.at),
            short_name(document, row.run),
            one.attempt,
            "" if one.round is None else one.round,
            "" if one.rank is None else one.rank,
            one.node or "",
            "" if one.step is None else str(one.step),
            "" if one.action is None else one.action.replace("_", " "),
            first_line(one.message),
        )
        for row, one in latest
    ]
    header = ("when", "run", "attempt", "round", "rank", "node", "step", "then", "what")
    return [
        paragraph(f"The latest {len(lines)}:" if len(lines) > 1 else "It was:"),
        table(header, lines, label="latest interruptions"),
    ]


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


def _runs_table(document: ReportDocument) -> Html:
    header = ("run", "state", "cause", "attempts", "steps", "time", "goodput", "nodes")
    body = [
        (short_name(document, row.run), *_run_cells(row, document.written_at))
        for row in document.rows
    ]
    return table(header, body, label="runs")


def _run_cells(row: RunRow, now: datetime) -> Sequence[Cell]:
    parts = None if row.goodput is None else row.goodput.parts
    goodput = None if row.goodput is None else row.goodput.goodput
    elapsed = row.elapsed(now) if parts is None else parts.wall
    state = f"{row.state} ({row.early})" if row.early else row.state.value
    return (
        element("span", state, class_=f"state {row.state}"),
        "" if row.failure is None else row.failure.cause.value,
        row.attempt,
        Figure(steps_text(row.step, row.total), None if row.step is None else float(row.step)),
        Figure(
            "" if elapsed is None else span_text(elapsed),
            None if elapsed is None else elapsed.total_seconds(),
        ),
        Figure(percent(goodput), goodput),
        compress_nodes(row.nodes),
    )
