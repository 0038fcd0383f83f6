"""Rows as text, for people: pages of lines and aligned tables. Pure.

`report.drawing` colours the same pages for a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.counted import format_count, format_ranges, format_step_of_total
from hpckit.model.environment.health import HealthVerdict, NodeInspection
from hpckit.model.goodput import Goodput
from hpckit.model.moment import (
    format_local_datetime,
    format_local_time_to_minute,
    format_slurm_duration,
    format_time_span,
)
from hpckit.model.parallel.layout import LayoutReport
from hpckit.model.states import RunState, parse_slurm_state
from hpckit.report import results as sweep
from hpckit.report.escape import escape_controls, escape_table_cell, shorten_text
from hpckit.report.failures import format_failure_groups, format_index_ranges
from hpckit.report.rows import (
    Foreign,
    LaunchHead,
    RunRow,
    count_runs_by_state,
    format_images,
    format_staged_data,
)
from hpckit.report.selection import LaunchLine, SortKey, find_sort_metric_value, format_override_cells
from hpckit.report.spread import SpreadResults, format_mean_deviation_and_count
from hpckit.values import dataclass, replace

_SHOWN, _SHOWN_REASONS = 8, 5
_LISTED = (RunState.failed, RunState.interrupted, RunState.unknown, RunState.running)
_MOST_LISTED = 24
"""More runs than a small terminal has lines are not listed one by one."""
SHOWN_WARNINGS = 5
SHOWN_METRICS = 3
CELL_WIDTH = 120
NAME_WIDTH = 40
HEAD_WIDTH = 80
_UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table of text cells.

    On a narrow terminal, cells of `flexible` columns are cut, then `spare` columns are left out, in order.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    spare: tuple[str, ...] = ()
    flexible: tuple[str, ...] = ()

    def without_empty_columns(self, *optional: str) -> TextTable:
        """Return the table without the `optional` columns that are empty; without any, of all."""
        kept = [
            place
            for place, name in enumerate(self.header)
            if (optional and name not in optional) or any(row[place] for row in self.rows)
        ]
        header, *rows = (tuple(line[place] for place in kept) for line in (self.header, *self.rows))
        return replace(self, header=header, rows=tuple(rows))


Page = Sequence[TextTable | str]
"""The parts of a page, top to bottom."""


def render_status_page(
    head: LaunchHead, rows: Sequence[RunRow], now: datetime, *, brief: bool = False
) -> Page:
    """Return the page of `status`: the launch, its runs, their counts, the failures and why.

    A `brief` one of many runs has the counts first, then what failed and what runs.
    """
    count = format_run_counts([row.state for row in rows])
    page: list[TextTable | str] = [format_launch_head(head, now)]
    if brief and len(rows) > _MOST_LISTED:
        page += [count, *_render_brief_table(head, rows, now)]
    else:
        page += [build_runs_table(rows, now, head.common), count]
    if len(rows) == 1:
        page += [*format_parallel_layout(rows[0].layout), *_format_preflight(rows[0].preflight)]
        page += format_staged_data(rows[0].staged)
    page += [*format_images(rows), *_format_run_notes(rows, now)]
    page += _format_blocked_runs(rows)
    warned = [row for row in rows if row.warnings and len(rows) > 1]
    page += [f"warning: {row.run}: {row.warnings[-1]}" for row in warned[:SHOWN_WARNINGS]]
    return [*page, *format_failure_groups(rows)]


def _render_brief_table(head: LaunchHead, rows: Sequence[RunRow], now: datetime) -> Page:
    known = [row for state in _LISTED for row in rows if row.state is state][:_MOST_LISTED]
    indices = {row.index for row in known}
    left = format_state_counts(count_runs_by_state(row.state for row in rows if row.index not in indices))
    table = [build_runs_table(known, now, head.common)] if known else []
    return [*table, f"not listed: {left}; `hpckit status {head.id} --all` lists every run"]


def _format_run_notes(rows: Sequence[RunRow], now: datetime) -> list[str]:
    """Return each note once, with the runs that it is about, and when Slurm starts the first."""
    notes: dict[str, list[RunRow]] = {}
    for row in rows:
        if row.note or row.expected_start:
            notes.setdefault(row.note or "Slurm: it waits", []).append(row)
    lines = []
    for note, some in notes.items():
        runs = f"runs {format_index_ranges(row.index for row in some)}" if some[1:] else some[0].run
        first = min((row.expected_start for row in some if row.expected_start), default=None)
        left = f", in {format_time_span(first - now)}" if first and first > now else ""
        start = f"; expected to start {format_local_time_to_minute(first)}{left}" if first else ""
        lines.append(f"note: {runs}: {note}{start}")
    return lines


def format_launch_head(head: LaunchHead, now: datetime) -> str:
    """Return the lines at the top: id and age, name, folder, and a foreign owner."""
    age = f"created {format_slurm_duration(max(now - head.created_at, timedelta(0)))} ago"
    lines = [f"{head.id}  {age}"]
    if len(lines[0]) > HEAD_WIDTH:
        lines = [head.id, age]
    # An id begins with the name, unless the name has characters that a folder should not have.
    lines += [] if head.id.startswith(f"{head.name}-") else [f"name {head.name}"]
    lines += [head.folder, *([] if head.foreign is None else [format_foreign_owner(head.foreign)])]
    return "\n".join(lines)


def format_foreign_owner(foreign: Foreign) -> str:
    """Return the line for a launch that is not the caller's own: whose it is, and why."""
    return f"not yours: {foreign.reason}; its files may have been changed by others"


def format_run_counts(states: Sequence[RunState]) -> str:
    """Return how many runs are in which state: `3 runs: 1 running, 2 completed`."""
    return f"{format_count(len(states), 'run')}: {format_state_counts(count_runs_by_state(states))}"


def format_state_counts(counts: Mapping[RunState, int]) -> str:
    """Return counts by state as text."""
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"


def build_runs_table(
    rows: Sequence[RunRow], now: datetime, common: frozenset[str] = frozenset()
) -> TextTable:
    """Return the table of runs, without empty columns.

    `common` are the overrides that all runs of the launch have.
    """
    overrides = format_override_cells((row.overrides for row in rows), common)
    again = any(row.attempt > 1 or row.round for row in rows)
    lines = (
        _format_status_row(row, words, now, again=again) for row, words in zip(rows, overrides, strict=True)
    )
    header = (
        *("run", "stage", "overrides", "state", "cause", "slurm", "job", "attempt", "steps"),
        *("nodes", "time", "failures", "goodput", "metrics"),
    )
    spare = ("nodes", "failures", "attempt", "time", "slurm", "metrics", "goodput", "steps")
    flexible = ("metrics", "nodes", "slurm", "state")
    return TextTable(header=header, rows=tuple(lines), spare=spare, flexible=flexible).without_empty_columns()


def _format_status_row(row: RunRow, overrides: str, now: datetime, *, again: bool) -> tuple[str, ...]:
    # How often ranks were restarted in the attempt: `2, restart 1`.
    attempt = f"{row.attempt}, restart {row.round}" if row.round else str(row.attempt or "")
    waits = f" ({row.reason})" if row.reason and row.state is RunState.pending else ""
    seen = row.slurm_state or ""
    if row.state.is_final and not parse_slurm_state(seen).ended:
        seen = ""  # from before the end, or of a job that other runs share
    return (
        str(row.index),
        row.stage or "",
        overrides,
        _format_state_with_early_reason(row.state, row.early),
        "" if row.failure is None else row.failure.cause.value,
        f"{seen}{waits}" if seen else "",
        row.job or "",
        attempt if again else "",
        format_step_of_total(row.step, row.total),
        compress_to_hostlist(row.nodes),
        format_slurm_duration(row.elapsed(now)),
        *format_goodput_cells(row.goodput),
        format_metrics(row.metrics),
    )


def _format_state_with_early_reason(state: RunState, early: str) -> str:
    return f"{state} ({early})" if early else state.value


def format_goodput_cells(account: Goodput | None) -> tuple[str, str]:
    """Return the cells `failures` and `goodput` of a run; empty if its goodput is not known."""
    if account is None:
        return ("", "")
    failures = sum(account.failures.values())
    return (str(failures) if failures else "", format_share_percent(account.goodput))


def format_share_percent(share: float | None) -> str:
    """Return a share of 1 as `94.1 %`."""
    return "" if share is None else f"{share:.1%}".replace("%", " %")


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Return the first metrics, short: `loss 0.1234, accuracy 0.98`."""
    words = [f"{shorten_text(name, NAME_WIDTH)} {format_number(metrics[name])}" for name in metrics]
    return ", ".join(words if len(words) <= SHOWN_METRICS else [*words[:SHOWN_METRICS], "…"])


def format_number(value: Any) -> str:
    """Return a value in at most four significant digits; None is an empty text."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else shorten_text(str(value), CELL_WIDTH)


def render_results_page(results: sweep.Results) -> Page:
    """Return the page of `results`."""
    results, left_out = _hide_uninformative_columns(results)
    overrides, metrics = results.column_names("overrides"), results.column_names("metrics")
    header = (*sweep.list_shown_column_names(results), "failures", "goodput")
    state = header.index("state")
    # Overrides and the first metric matter most.
    spare = ("failures", "goodput", "time", "attempt", "steps", *metrics[:0:-1])
    lines = (
        (
            *map(format_number, line[:state]),
            _format_state_with_early_reason(row.state, row.reason),
            *map(format_number, line[state + 1 :]),
            *format_goodput_cells(row.goodput),
        )
        for line, row in zip(sweep.list_shown_row_values(results), results.rows, strict=True)
    )
    sheet = TextTable(
        header=header,
        rows=tuple(lines),
        spare=(*spare, "cause", *metrics[:1], *overrides),
        flexible=("state", *overrides, *metrics),
    ).without_empty_columns("failures", "goodput", "steps")
    return [sheet, *left_out, *_format_blocked_runs(results.rows)]


def _hide_uninformative_columns(results: sweep.Results) -> tuple[sweep.Results, list[str]]:
    """Return the results without uninformative overrides, and a line that names them.

    These are the same in all rows, or wide; one that tells the rows apart, or was swept, stays.
    """
    texts = {name: [row.overrides.get(name) or "" for row in results.rows] for name in results.overrides}
    several = {name: cells for name, cells in texts.items() if len(cells) > 1}
    same = [name for name, cells in several.items() if len(set(cells)) == 1]
    same = [name for name in same if name not in results.kept]
    wide = [name for name in texts if any(len(text) > NAME_WIDTH for text in texts[name])]
    wide = [name for name in wide if name not in same]
    wide = [] if len(same) + len(wide) == len(texts) else wide
    kept = tuple(name for name in texts if name not in (*same, *wide))
    said = [f"{name}={shorten_text(texts[name][0], NAME_WIDTH)} in all rows" for name in same]
    said += [f"{name} is wide" for name in wide]
    line = [f"not shown: {', '.join(said)} (--csv and --json have all)"] if said else []
    return replace(results, overrides=kept), line


def render_spread_page(results: SpreadResults) -> Page:
    """Return the page of `results --over`: one row for runs that differ only in these keys."""
    overrides, metrics = results.column_names("overrides"), results.column_names("metrics")
    rows = tuple(
        (
            row.stage or "",
            *(format_number(row.overrides.get(name)) for name in results.overrides),
            str(len(row.runs)) + ("" if row.completed == len(row.runs) else f" ({row.completed} completed)"),
            *(format_mean_deviation_and_count(row.metrics[name], row.completed) for name in results.metrics),
        )
        for row in results.rows
    )
    header = ("stage", *overrides, "runs", *metrics)
    table = TextTable(header=header, rows=rows, spare=metrics[:0:-1], flexible=overrides)
    return [table.without_empty_columns("stage")]


def render_launches_page(launches: Sequence[LaunchLine], key: SortKey | None = None) -> Page:
    """Return the page of `ls`, with the metric it is sorted by."""
    values = [format_number(find_sort_metric_value(launch, key)) for launch in launches]
    metric = key.column if key is not None and any(values) else ""
    rows = tuple(
        (
            one.head.id,
            format_local_datetime(one.head.created_at),
            format_state_counts(one.counts),
            value,
            "" if one.head.foreign is None else one.head.foreign.owner,
        )
        for one, value in zip(launches, values, strict=True)
    )
    header = ("launch", "created", "runs", metric, "of")
    return [TextTable(header=header, rows=rows, spare=("created",)).without_empty_columns("", "of")]


def render_plain_text(page: Page) -> str:
    """Return a page as lines without colour, the same for any terminal width."""
    return "\n".join(
        escape_controls(part) if isinstance(part, str) else _align_table(escape_table(part)) for part in page
    )


def escape_table(sheet: TextTable) -> TextTable:
    """Return a table with its control characters escaped, and its headings short."""
    return TextTable(
        header=tuple(map(_format_heading, sheet.header)),
        rows=tuple(tuple(map(escape_table_cell, row)) for row in sheet.rows),
        spare=tuple(map(_format_heading, sheet.spare)),
        flexible=tuple(map(_format_heading, sheet.flexible)),
    )


def _format_heading(name: str) -> str:
    return shorten_text(escape_table_cell(name), CELL_WIDTH)


def _align_table(sheet: TextTable) -> str:
    lines = [sheet.header, *sheet.rows]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _format_preflight(inspections: Sequence[NodeInspection]) -> Iterator[str]:
    """Yield a line on all nodes, and one for each finding: `preflight: 3 of 4 nodes ok`."""
    if not inspections:
        return
    counts = Counter(inspection.verdict for inspection in inspections)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in HealthVerdict if counts[verdict])
    yield f"preflight ({inspections[0].level}): {format_count(len(inspections), 'node')}: {told}"
    found = [each for inspection in inspections for each in inspection.findings]
    for each in found[:_SHOWN]:
        yield f"  {each.verdict}: {each.message}"
    if len(found) > _SHOWN:
        yield f"  and {format_count(len(found) - _SHOWN, 'more finding')}; --json has all"


def _format_blocked_runs(rows: Sequence[RunRow | sweep.ResultRow]) -> list[str]:
    """Return a line for each reason for which runs of a later stage never began, however many.

    If there are too many, the last line counts the rest.
    """
    reasons: dict[tuple[str | None, str], list[int]] = {}
    for row in rows:
        if row.blocked:
            reasons.setdefault((row.stage, row.blocked), []).append(row.index)
    lines = [
        f"cancelled: stage {stage}, run {format_ranges(runs)}: because {reason}"
        for (stage, reason), runs in reasons.items()
    ]
    left = len(lines) - _SHOWN_REASONS
    return lines if left <= 0 else [*lines[:_SHOWN_REASONS], f"… and for {left} more reasons"]


def format_parallel_layout(report: LayoutReport | None) -> Iterator[str]:
    """Yield the line on a layout: `layout: shard 4; 1.2 M of 4.7 M parameters on each rank`.

    There is none for a single rank, and for runs that never reported.
    """
    if report is None or report.layout.world_size == 1:
        return
    held = ""
    if report.model_parameters:  # else no parameters were registered
        counts = [count for _, count in report.parameters]
        least, most = format_short_count(min(counts)), format_short_count(max(counts))
        each = least if least == most else f"{least} to {most}"
        whole = format_short_count(report.model_parameters)
        held = f"; {each if each == whole else f'{each} of {whole}'} parameters on each rank"
    yield f"layout: {report.layout}{held}"


def format_short_count(count: int) -> str:
    """Return a large number in at most three digits: `1.2 M`, `860`."""
    rounded = float(f"{count:.3g}")
    for unit, letter in _UNITS:
        if rounded >= unit:
            return f"{rounded / unit:.3g} {letter}"
    return str(count)
