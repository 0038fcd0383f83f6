"""Rows as text, for people: pages of lines and tables, aligned. Pure; it prints nothing.

`report.drawing` colours the same pages for a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.counted import counted
from hpckit.model.failure import Failure
from hpckit.model.goodput import Goodput
from hpckit.model.states import RunState
from hpckit.report import results as sweep
from hpckit.report.blocked import blocked_lines
from hpckit.report.escape import escaped, escaped_cell, shortened
from hpckit.report.launches import LaunchLine, best
from hpckit.report.rows import Foreign, LaunchHead, RunRow, count_states
from hpckit.report.selection import SortKey

TRACEBACK_LINES = 12
SHOWN_FAILURES = 5
SHOWN_METRICS = 3
CELL_WIDTH = 120
MESSAGE_CHARACTERS = 1000
"""What is longer is cut in texts; JSON and logs have the whole."""

_OUR_FRAME = re.compile(r'\s*File ".*[/\\]hpckit[/\\](?:runtime|cli|batch|operations)[/\\]')
_FRAME = re.compile(r'\s*File "')


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table of cells already worded; `spare` columns give way on a narrow terminal, in order."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    spare: tuple[str, ...] = ()


Page = Sequence[TextTable | str]
"""What is shown, top to bottom."""


def status_page(head: LaunchHead, rows: Sequence[RunRow], now: datetime) -> Page:
    """Return the page of `status`: the launch, its runs, their counts, what failed and why."""
    failed = [row for row in rows if row.failure is not None]
    page: list[TextTable | str] = [head_line(head, now), runs_table(rows, now)]
    page.append(count_line([row.state for row in rows]))
    page += [f"note: {row.run}: {row.note}" for row in rows if row.note]
    page += blocked_lines(rows)
    warned = [row for row in rows if row.warnings and len(rows) > 1]
    page += [f"warning: {row.run}: {row.warnings[-1]}" for row in warned[:SHOWN_FAILURES]]
    page += ["\n" + failure_text(row) for row in failed[:SHOWN_FAILURES]]
    if len(failed) > SHOWN_FAILURES:
        page.append(f"\n… and {len(failed) - SHOWN_FAILURES} more; `hpckit status RUN` shows one")
    return page


def head_line(head: LaunchHead, now: datetime) -> str:
    """Return the line above everything: id, name, folder, moment."""
    age = duration(max(now - head.created_at, timedelta(0)))
    whose = "" if head.foreign is None else f"\n{_foreign_line(head.foreign)}"
    # An id begins with the name and the moment; together they would not fit into 80 columns.
    name = "" if head.id.startswith(f"{head.name}-") else f"  name {head.name}"
    return f"{head.id}{name}  created {age} ago\n{head.folder}{whose}"


def _foreign_line(foreign: Foreign) -> str:
    return f"not yours: {foreign.reason}; this is what its files say, and they may say anything"


def count_line(states: Sequence[RunState]) -> str:
    """Return how many runs are in which state: `3 runs: 1 running, 2 completed`."""
    return f"{counted(len(states), 'run')}: {states_text(count_states(states))}"


def states_text(counts: Mapping[RunState, int]) -> str:
    """Return counts by state in words."""
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"


_STATUS_HEADER = (
    *("run", "stage", "state", "slurm", "job", "attempt", "step", "nodes", "time"),
    *("failures", "goodput", "metrics"),
)


def runs_table(rows: Iterable[RunRow], now: datetime) -> TextTable:
    """Return the table of runs, without columns in which nothing stands."""
    lines = [_status_cells(row, now) for row in rows]
    kept = [place for place in range(len(_STATUS_HEADER)) if any(line[place] for line in lines)]
    return TextTable(
        header=tuple(_STATUS_HEADER[place] for place in kept),
        rows=tuple(tuple(line[place] for place in kept) for line in lines),
    )


def _status_cells(row: RunRow, now: datetime) -> tuple[str, ...]:
    waits = f" ({row.reason})" if row.reason and row.state is RunState.pending else ""
    return (
        str(row.index),
        row.stage or "",
        _state(row.state, row.early),
        f"{row.slurm_state}{waits}" if row.slurm_state else "",
        row.job or "",
        _attempt(row),
        "" if row.step is None else str(row.step),
        compress_nodes(row.nodes),
        duration(row.elapsed(now)),
        *goodput_cells(row.goodput),
        metrics_text(row.metrics),
    )


def _state(state: RunState, early: str) -> str:
    return f"{state} ({early})" if early else state.value


def goodput_cells(account: Goodput | None) -> tuple[str, str]:
    """Return the cells `failures` and `goodput` of a run; empty where there is no account."""
    if account is None:
        return ("", "")
    failures = sum(account.failures.values())
    return (str(failures) if failures else "", percent(account.goodput))


def percent(share: float | None) -> str:
    """Return a share of 1 as `94.1 %`."""
    return "" if share is None else f"{share:.1%}".replace("%", " %")


def _attempt(row: RunRow) -> str:
    if row.attempt == 0:
        return ""
    return str(row.attempt) if row.round is None else f"{row.attempt}.{row.round}"


def metrics_text(metrics: Mapping[str, Any], *, shown: int = SHOWN_METRICS) -> str:
    """Return the first metrics, short: `loss 0.1234, accuracy 0.98`."""
    words = [f"{name} {number(value)}" for name, value in list(metrics.items())[:shown]]
    return ", ".join([*words, "…"] if len(metrics) > shown else words)


def number(value: Any) -> str:
    """Return a value in at most four significant digits; None as nothing."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else shortened(str(value), CELL_WIDTH)


def duration(span: timedelta | None) -> str:
    """Return a duration as Slurm writes it: `0:05`, `1:02:03`, `3-04:05:06`."""
    if span is None:
        return ""
    minutes, seconds = divmod(int(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def moment(at: datetime) -> str:
    """Return a moment in UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def failure_text(row: RunRow) -> str:
    """Return what a run died of, the last lines of the user's traceback, and where to read on."""
    if row.failure is None:
        return ""
    lines = [f"{row.run} {row.state}: {_where(row.failure)}"]
    lines += [f"    {line}" for line in user_traceback(row.failure.traceback or "")]
    lines.append(f"  whole log: hpckit logs {row.run}")
    if row.state is RunState.failed:
        lines.append(
            f"  try again: hpckit rerun {row.run} (today's code), or hpckit resume {row.run} "
            "(the frozen code)"
        )
    return "\n".join(lines)


def _where(failure: Failure) -> str:
    places = [
        "" if failure.rank is None else f"rank {failure.rank}",
        f"on {failure.node}" if failure.node else "",
        "" if failure.step is None else f"at step {failure.step}",
    ]
    place = " ".join(place for place in places if place)
    message = shortened(failure.message, MESSAGE_CHARACTERS)
    return f"{failure.cause}{f' ({place})' if place else ''}: {message}"


def user_traceback(traceback: str, *, shown: int = TRACEBACK_LINES) -> tuple[str, ...]:
    """Return the last lines of a traceback without hpckit's own frames.

    A frame is its `File` line and the lines below it up to the next frame or to a line that is
    not indented. Where nothing but our frames is there, they stay.
    """
    lines = traceback.rstrip().splitlines()
    kept, ours = [], False
    for line in lines:
        if _FRAME.match(line):
            ours = _OUR_FRAME.match(line) is not None
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    if not any(_FRAME.match(line) for line in kept):
        kept = lines
    return tuple(kept if len(kept) <= shown else ["…", *kept[-shown:]])


def results_page(results: sweep.Results) -> Page:
    """Return the page of `results`."""
    header = (*sweep.header(results), "failures", "goodput")
    state = header.index("state", 1 + len(results.overrides))
    lines = [
        (
            *map(number, line[:state]),
            _state(row.state, row.reason),
            *map(number, line[state + 1 : -1]),
            _seconds(line[-1]),
            *goodput_cells(row.goodput),
        )
        for line, row in zip(sweep.cells(results), results.rows, strict=True)
    ]
    shown = [
        place
        for place, name in enumerate(header)
        if name not in {"failures", "goodput"} or any(line[place] for line in lines)
    ]
    rows = tuple(tuple(line[place] for place in shown) for line in lines)
    names = tuple(header[place] for place in shown)
    sheet = TextTable(header=names, rows=rows, spare=(*_SPARE, *results.metrics[:0:-1]))
    return [sheet, *blocked_lines(results.rows)]


_SPARE = ("failures", "goodput", "time", "attempt", "step")
"""What gives way first in `results`: overrides and the first metric are what it is about."""


def _seconds(wall_s: float | None) -> str:
    return "" if wall_s is None else duration(timedelta(seconds=wall_s))


def launches_page(launches: Sequence[LaunchLine], key: SortKey | None = None) -> Page:
    """Return the page of `ls`, with the metric it is sorted by."""
    values = [number(best(one, key)) for one in launches]
    shown = key is not None and any(values)
    strange = any(one.head.foreign is not None for one in launches)
    rows = tuple(
        (
            one.head.id,
            moment(one.head.created_at),
            states_text(one.counts),
            *((value,) if shown else ()),
            *(("" if one.head.foreign is None else one.head.foreign.owner,) if strange else ()),
            one.head.folder,
        )
        for one, value in zip(launches, values, strict=True)
    )
    column = (key.column,) if shown and key is not None else ()
    whose = ("of",) if strange else ()
    header = ("launch", "created", "runs", *column, *whose, "folder")
    return [TextTable(header=header, rows=rows, spare=("folder", "created"))]


def plain(page: Page) -> str:
    """Return a page as lines without colour, the same whatever the width of the terminal."""
    return "\n".join(
        escaped(part) if isinstance(part, str) else _aligned(harmless(part)) for part in page
    )


def harmless(sheet: TextTable) -> TextTable:
    """Return a table with its control characters escaped."""
    return TextTable(
        header=tuple(map(escaped_cell, sheet.header)),
        rows=tuple(tuple(map(escaped_cell, row)) for row in sheet.rows),
        spare=tuple(map(escaped_cell, sheet.spare)),
    )


def _aligned(sheet: TextTable) -> str:
    lines = [tuple(name.upper() for name in sheet.header), *sheet.rows]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
