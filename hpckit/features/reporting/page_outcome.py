"""The first two sections and the eighth: what holds runs back, how they ended, what ran. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import nlargest
from typing import Any

from hpckit.features.reporting.document import (
    ReportDocument,
    ReportLaunch,
    explain_no_verdict,
    format_best_run,
    format_run_ids,
    format_runs_of_verdict,
    format_summary_sentences,
    list_interruptions,
    shorten_run_name,
)
from hpckit.features.reporting.page_parts import (
    Badge,
    Cell,
    Figure,
    Section,
    Table,
    build_duration_cell,
    build_share_cell,
    build_table,
)
from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.counted import format_byte_size, format_count, format_step_of_total
from hpckit.model.moment import format_local_datetime
from hpckit.model.states import RunState
from hpckit.report.account import shorten_to_first_line
from hpckit.report.description import AttemptDescription, LaunchDescription
from hpckit.report.diagnosis import format_verdict_kind_and_severity, group_verdicts
from hpckit.report.failures import (
    FailureGroup,
    format_failure,
    format_failure_group_line,
    group_failures,
    shorten_user_traceback,
)
from hpckit.report.rows import RunRow, count_runs_by_state, format_settings_change
from hpckit.report.text import format_foreign_owner

SHOWN_FAILURES = 20
SHOWN_REMARKS = 10
SHOWN_INTERRUPTIONS = 20
SHOWN_DATA = 40


def build_verdicts_section(document: ReportDocument) -> Section:
    """Return what holds runs back, in words, with numbers and remedies."""
    values = {
        "summary": format_summary_sentences(document),
        "verdicts": [
            {
                "worst": group.worst,
                "head": format_verdict_kind_and_severity(group.worst),
                "runs": format_runs_of_verdict(group, len(document.rows)),
            }
            for group in group_verdicts(document.rows)
        ],
        "no_verdict": explain_no_verdict(document.rows),
    }
    return Section(name="verdicts", title="Verdicts", values=values)


def build_outcome_section(document: ReportDocument) -> Section:
    """Return the states of runs, their failures by cause, the best run, and a table of all."""
    rows = document.rows
    groups = group_failures(rows)
    header = ("run", "state", "cause", "attempts", "steps", "time", "goodput", "nodes")
    cells = [
        (shorten_run_name(document, row.run), *_build_run_cells(row, document.written_at)) for row in rows
    ]
    values = {
        "states": count_runs_by_state(row.state for row in rows),
        "best": format_best_run(document),
        "failures": [_build_failure_template_values(group) for group in groups[:SHOWN_FAILURES]],
        "failures_left": len(groups) - SHOWN_FAILURES,
        "causes": _build_causes_table(rows),
        "latest": _build_interruptions_table(document),
        "remarks": list(_list_status_remarks(rows)),
        "data": _build_data_table(document),
        "runs": build_table(header, cells),
    }
    return Section(name="outcome", title="Outcome", values=values)


def _build_data_table(document: ReportDocument) -> Table:
    """Return what was brought to which node, the slowest first."""
    staged = [(row, one) for row in document.rows for one in row.staged]
    lines = [
        (
            *(shorten_run_name(document, row.run), one.name, one.node, one.how, format_byte_size(one.bytes)),
            Figure(f"{one.seconds:.1f}", one.seconds),
            Figure(f"{one.bytes / one.seconds / 1e9:.2f}" if one.seconds else "", one.seconds),
        )
        for row, one in nlargest(SHOWN_DATA, staged, key=lambda pair: pair[1].seconds)
    ]
    return build_table(("run", "data", "node", "how", "size", "seconds", "GB/s"), lines)


def _build_failure_template_values(group: FailureGroup) -> Mapping[str, Any]:
    failure, run = group.failure, group.rows[0].run
    alone = len(group.rows) == 1
    return {
        "head": f"{run}: {format_failure(failure)}" if alone else format_failure_group_line(group),
        "several": not alone,
        "run": run,
        "traceback": "\n".join(shorten_user_traceback(failure.traceback or "")),
    }


def _build_causes_table(rows: Sequence[RunRow]) -> Table:
    counts: dict[tuple[str, bool], list[RunRow]] = {}
    for row, one in list_interruptions(rows):
        counts.setdefault((one.cause.value, one.planned), []).append(row)
    lines = [
        (
            cause,
            "planned" if planned else "failure",
            len(some),
            format_run_ids([*{row.run: row for row in some}.values()]),
        )
        for (cause, planned), some in sorted(counts.items(), key=lambda one: -len(one[1]))
    ]
    return build_table(("cause", "kind", "how often", "runs"), lines)


def _build_interruptions_table(document: ReportDocument) -> Table:
    """Return the latest interruptions, each with when, where and why, the newest first."""
    every = list_interruptions(document.rows)
    latest = nlargest(SHOWN_INTERRUPTIONS, every, key=lambda pair: pair[1].at)
    lines = [
        (
            format_local_datetime(one.at),
            shorten_run_name(document, row.run),
            one.attempt,
            one.round,
            one.rank,
            one.node,
            "" if one.step is None else str(one.step),
            "" if one.action is None else one.action.replace("_", " "),
            shorten_to_first_line(one.message),
        )
        for row, one in latest
    ]
    header = ("when", "run", "attempt", "round", "rank", "node", "step", "then", "what")
    return build_table(header, lines)


def _list_status_remarks(rows: Sequence[RunRow]) -> Iterator[str]:
    """Yield what status would note below its table, each text once."""
    texts: dict[str, list[RunRow]] = {}
    for row in rows:
        for text in (row.blocked, row.note, *row.warnings[-1:]):
            if text:
                texts.setdefault(text, []).append(row)
    for text, some in list(texts.items())[:SHOWN_REMARKS]:
        yield f"{format_run_ids(some)}: {text}"
    left = len(texts) - SHOWN_REMARKS
    if left > 0:
        yield f"… and {format_count(left, 'other remark')}"


def _build_run_cells(row: RunRow, now: datetime) -> Sequence[Cell]:
    parts = None if row.goodput is None else row.goodput.parts
    return (
        Badge(f"{row.state} ({row.early})" if row.early else row.state.value, row.state),
        "" if row.failure is None else row.failure.cause.value,
        row.attempt,
        Figure(format_step_of_total(row.step, row.total), None if row.step is None else float(row.step)),
        build_duration_cell(row.elapsed(now) if parts is None else parts.wall),
        build_share_cell(None if row.goodput is None else row.goodput.goodput),
        compress_to_hostlist(row.nodes),
    )


_SHOWN_FILES = 50


def build_provenance_section(document: ReportDocument) -> Section:
    """Return the facts of each launch, and the jobs and nodes of each run."""
    rows = [
        (
            shorten_run_name(document, row.run),
            row.job or "",
            row.attempt,
            ", ".join(row.nodes),
            " ".join(row.overrides),
        )
        for row in document.rows
    ]
    values = {
        "launches": [_build_launch_template_values(launch, document) for launch in document.launches],
        "jobs": build_table(("run", "Slurm job", "attempts", "nodes", "overrides"), rows),
    }
    return Section(name="provenance", title="Provenance", values=values)


def _build_launch_template_values(one: ReportLaunch, document: ReportDocument) -> Mapping[str, Any]:
    about = one.about
    foreign, changed, run = about.head.foreign, about.code.changed_files, about.run
    left = len(changed) - _SHOWN_FILES
    packages = sorted(one.packages.items(), key=lambda pair: pair[0].lower())
    attempts = () if run is None else run.attempts
    rows = about.rows if run is None else (run.row,)
    return {
        "id": about.head.id,
        "foreign": None if foreign is None else format_foreign_owner(foreign),
        "facts": _list_launch_facts(about),
        "changed": changed,
        "changed_text": "\n".join(changed[:_SHOWN_FILES]) + (f"\n… and {left} more" if left > 0 else ""),
        "packages": build_table(("package", "version"), packages),
        "attempts": build_table(
            ("attempt", "Slurm job", "nodes", "rounds", "state", "exit code", "began", "time"),
            [_build_attempt_cells(attempt, document) for attempt in attempts],
        ),
        "reference": one.reference,
        "unfinished": any(row.state is not RunState.completed for row in rows),
    }


def _list_launch_facts(about: LaunchDescription) -> Iterable[tuple[str, str]]:
    code, environment, run = about.code, about.environment, about.run
    changed = " with changes" if code.dirty is True else ""  # the file may say anything
    branch = f" on {code.branch}" if code.branch else ""
    driver = f", driver {environment.driver}" if environment.driver else ""
    yield "name", about.head.name
    yield "created", format_local_datetime(about.head.created_at)
    yield "words", f"hpckit {shlex.join(about.arguments)}"
    yield "commit", f"{code.commit}{branch}{changed}" if code.commit else "outside git"
    yield "project", code.project + ("" if code.snapshot else " (no snapshot: it ran from there)")
    yield "program", "" if run is None else run.program
    yield "signature", "" if run is None else run.signature
    yield "resumed", "" if run is None else "; ".join(map(format_settings_change, run.settings_changes))
    yield "Slurm jobs", ", ".join(about.jobs)
    yield "resources", ", ".join(f"{name}={value}" for name, value in about.resources.items())
    yield "Python", ", ".join(filter(None, (environment.python, environment.executable)))
    yield "torch", environment.torch or ""
    yield "hpckit", environment.hpckit or ""
    yield "frozen on", f"{environment.host}{driver}" if environment.host else ""
    yield "modules", " ".join(environment.modules)
    yield "folder", about.head.folder


def _build_attempt_cells(one: AttemptDescription, document: ReportDocument) -> Sequence[Cell]:
    took = None
    if one.started_at is not None:
        took = max((one.ended_at or document.written_at) - one.started_at, timedelta())
    return (
        one.attempt,
        one.job or "",
        ", ".join(one.nodes),
        one.rounds,
        "" if one.state is None else one.state.value,
        one.exit_code,
        "" if one.started_at is None else format_local_datetime(one.started_at),
        build_duration_cell(took),
    )
