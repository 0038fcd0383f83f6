"""The state of a launch, short enough for repeated display: counts by state, and the time left.

The text of `status --watch`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.counted import format_count
from hpckit.model.elastic import Satellite
from hpckit.model.moment import format_local_time_to_minute, format_slurm_duration
from hpckit.model.plain import attributes_to_json, to_plain
from hpckit.model.states import RunState
from hpckit.report.account import format_share_bar
from hpckit.report.rows import LaunchHead, RunRow, count_runs_by_state
from hpckit.report.text import (
    Page,
    TextTable,
    build_runs_table,
    format_launch_head,
    format_run_counts,
    format_share_percent,
)
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of all runs: their states, the share that is done, and the remaining time.

    `queue_at` is when Slurm was last asked, null if never. `failures` has a line for each kind of
    failure, `satellites` are the jobs that bring runs nodes.
    """

    states: tuple[RunState, ...]
    share: float
    remaining: timedelta | None
    at: datetime
    queue_at: datetime | None = None
    failures: tuple[str, ...] = ()
    satellites: tuple[Satellite, ...] = ()

    @property
    def slurm_answer_age_text(self) -> str:
        """How old Slurm's answer is; empty without one."""
        if self.queue_at is None:
            return ""
        return f"queue as of {format_slurm_duration(max(self.at - self.queue_at, timedelta(0)))} ago"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Runs that are shown by name: those from index `first` on, of `total`."""

    rows: Sequence[RunRow]
    first: int
    total: int


def render_live_page(head: LaunchHead, progress: Progress, listed: Listed) -> Page:
    """Return the page: the states, the progress, and these runs."""
    counts, total = count_runs_by_state(progress.states), len(progress.states)
    states = TextTable(
        header=("state", "runs", "share", ""),
        rows=tuple(
            (
                state.value,
                str(count),
                f"{format_share_percent(count / total):>7}",
                format_share_bar(count / total),
            )
            for state, count in counts.items()
        ),
    )
    words = filter(None, (_format_progress(progress), progress.slurm_answer_age_text))
    done = f"\n{format_share_bar(progress.share)} {'; '.join(words)}\n"
    runs = _render_listed_runs(listed, progress.at, head.common)
    satellites = filter(None, [format_satellites_line(progress.satellites)])
    return [format_launch_head(head, progress.at), states, done, *runs, *satellites, *progress.failures]


def _render_listed_runs(listed: Listed, now: datetime, common: frozenset[str]) -> Page:
    if not listed.rows:
        return []
    sheet, last = build_runs_table(listed.rows, now, common), listed.first + len(listed.rows)
    if len(listed.rows) == listed.total:
        return [sheet]
    place = f"{listed.first + 1} to {last} of {listed.total}"
    return [sheet, f"{place}   n next page, p previous page, q quit"]


def format_progress_line(progress: Progress) -> str:
    """Return the progress in one line."""
    parts = (
        format_run_counts(progress.states),
        _format_progress(progress),
        format_satellites_line(progress.satellites),
    )
    return "; ".join(filter(None, parts))


def progress_to_json(launch: str, progress: Progress) -> dict[str, Any]:
    """Return the progress for programs."""
    remaining = progress.remaining
    return {
        "launch": launch,
        **attributes_to_json(progress, "at"),
        "total": len(progress.states),
        "states": to_plain(count_runs_by_state(progress.states)),
        "share": round(progress.share, 6),
        "remaining_s": None if remaining is None else round(remaining.total_seconds(), 3),
        **attributes_to_json(progress, "satellites"),
    }


def _format_progress(progress: Progress) -> str:
    done = f"{format_share_percent(progress.share)} done"
    if all(state.ended or state is RunState.unknown for state in progress.states):
        return done
    if progress.remaining is None:
        return f"{done}, no estimate yet"
    end = progress.at + progress.remaining
    return (
        f"{done}, about {format_slurm_duration(progress.remaining)} to go (until "
        f"{format_local_time_to_minute(end)})"
    )


def format_satellites_line(satellites: Sequence[Satellite]) -> str:
    """Return one line on all satellite jobs that wait or run; empty without any.

    Example: `satellites: 12 running on n[3-4], 13 pending`.
    """
    if not satellites:
        return ""
    each = (
        f"{satellite.job} {satellite.state}{_format_satellite_nodes(satellite)}" for satellite in satellites
    )
    return f"{'satellite' if len(satellites) == 1 else 'satellites'}: {', '.join(each)}"


def _format_satellite_nodes(one: Satellite) -> str:
    return f" on {compress_to_hostlist(one.nodes)}" if one.nodes else ""


def format_satellite_lines(rows: Iterable[RunRow]) -> Iterator[str]:
    """Yield a line for each satellite job that waits or runs.

    Example: `satellite job 12 of charlm.0 is running: 1 replica more on n[3-4]`.
    """
    for row in rows:
        for satellite in row.satellites:
            yield (
                f"satellite job {satellite.job} of {row.run} is {satellite.state}: "
                f"{format_count(satellite.replicas, 'replica')} "
                f"more{_format_satellite_nodes(satellite)}"
            )
