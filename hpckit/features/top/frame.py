"""What `hpckit top` shows: frozen view models of runs, of one run in detail, and of a page. Pure.

The terminal application maps these to widgets, and nothing else. All texts are harmless on a
terminal: control characters are escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from hpckit.features.top.plot import Point
from hpckit.model.counted import format_count, format_step_of_total, format_whole_percent
from hpckit.model.moment import format_local_time_of_day, format_slurm_duration
from hpckit.model.states import RunState
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import GpuDevice, GpuGauge, GpuRow
from hpckit.report.escape import escape_table_cell
from hpckit.report.live import Progress, format_satellites_line
from hpckit.report.rows import LaunchHead, RunRow, count_runs_by_state
from hpckit.report.selection import FAILED, format_override_cells
from hpckit.report.text import format_number, format_share_percent, format_state_counts
from hpckit.values import dataclass, field


class TopColumn(StrEnum):
    """A column of the table of runs; its value is the heading."""

    run = "run"
    overrides = "overrides"
    state = "state"
    cause = "cause"
    step = "step"
    step_time = "s/step"
    metric = "metric"
    goodput = "goodput"
    gpu = "GPU"
    power = "W"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNow:
    """A GPU of a run, by the newest row of its node; null is what is not known."""

    node: str
    index: int | None
    utilization: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunActivity:
    """What a run does at present, by the newest rows of its nodes and by its progress."""

    step_s: float | None = None
    gpus: tuple[GpuNow, ...] = ()
    ranks: tuple[RankSteps, ...] = ()

    @property
    def utilization(self) -> float | None:
        """The mean utilization of its GPUs."""
        known = [gpu.utilization for gpu in self.gpus if gpu.utilization is not None]
        return sum(known) / len(known) if known else None

    @property
    def power_w(self) -> float | None:
        """The power of all its GPUs."""
        known = [gpu.power_w for gpu in self.gpus if gpu.power_w is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRow:
    """One run of the table: its cells as text, and the values to sort by, if known."""

    index: int
    run: str
    state: RunState
    overrides: tuple[str, ...]
    cells: Mapping[TopColumn, str]
    values: Mapping[TopColumn, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopDetail:
    """One run in detail. `log` are the last lines of what it printed, `events` the latest ones.

    `loading` is whether the points are still to be read.
    """

    index: int
    title: str
    metric: str = ""
    points: tuple[Point, ...] = ()
    loading: bool = False
    activity: RunActivity = field(default_factory=RunActivity)
    log_title: str = ""
    log: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopFrame:
    """One look at a launch. `rows` are all its runs; `metrics` are the names that may be shown."""

    head: tuple[str, ...]
    rows: tuple[TopRow, ...]
    metric: str = ""
    metrics: tuple[str, ...] = ()
    warning: str = ""
    detail: TopDetail | None = None


def build_gpu_snapshot(node: str, row: GpuRow, device: GpuDevice | None) -> GpuNow:
    """Return a GPU as its latest row has it."""
    means = {name: spread.mean for name, spread in row.gauges.items()}
    return GpuNow(
        node=node,
        index=None if device is None else device.index,
        utilization=means.get(GpuGauge.busy_share, means.get(GpuGauge.graphics_share)),
        memory_bytes=means.get(GpuGauge.memory_used_bytes),
        memory_total_bytes=None if device is None else device.memory_bytes,
        power_w=means.get(GpuGauge.power_w),
        temperature_c=means.get(GpuGauge.temperature_c),
    )


def compute_mean_step_s(ranks: Iterable[RankSteps]) -> float | None:
    """Return how long a step takes, over all ranks that reported any."""
    known = [(rank.seconds, rank.steps) for rank in ranks if rank.steps > 0]
    steps = sum(count for _, count in known)
    return sum(seconds for seconds, _ in known) / steps if steps else None


def build_top_rows(
    rows: Sequence[RunRow],
    activities: Mapping[int, RunActivity],
    goodput: Mapping[int, float | None],
    *,
    metric: str,
    common: frozenset[str] = frozenset(),
) -> tuple[TopRow, ...]:
    """Return the rows of the table. What was not read of a run has no cell and no value."""
    words = format_override_cells((row.overrides for row in rows), common)
    idle = RunActivity()
    return tuple(
        _build_top_row(row, cell, activities.get(row.index, idle), goodput.get(row.index), metric)
        for row, cell in zip(rows, words, strict=True)
    )


def _build_top_row(
    row: RunRow, words: str, activity: RunActivity, goodput: float | None, metric: str
) -> TopRow:
    runs = row.state is RunState.running
    step_s = activity.step_s if runs else None
    busy = activity.utilization if runs else None
    power = activity.power_w if runs else None
    steps, value = format_step_of_total(row.step, row.total).replace(" of ", "/"), row.metrics.get(metric)
    cause = "" if row.failure is None else row.failure.cause.value
    shown: Mapping[TopColumn, tuple[Any, str]] = {
        TopColumn.run: (row.index, str(row.index)),
        TopColumn.overrides: (words or None, words),
        TopColumn.state: (row.state.value, row.state.value),
        TopColumn.cause: (cause or None, cause),
        TopColumn.step: (row.step, steps),
        TopColumn.step_time: (step_s, "" if step_s is None else f"{step_s:.3g}"),
        TopColumn.metric: (value, format_number(value)),
        TopColumn.goodput: (goodput, format_whole_percent(goodput)),
        TopColumn.gpu: (busy, format_whole_percent(busy)),
        TopColumn.power: (power, "" if power is None else f"{power:.0f}"),
    }
    return TopRow(
        index=row.index,
        run=escape_table_cell(row.run),
        state=row.state,
        overrides=row.overrides,
        cells={name: escape_table_cell(cell) for name, (_, cell) in shown.items()},
        values={name: value for name, (value, _) in shown.items()},
    )


def format_launch_and_progress(head: LaunchHead, progress: Progress, runs: int) -> tuple[str, ...]:
    """Return the two lines on top: the launch, and how its runs stand."""
    states = count_runs_by_state(progress.states)
    # What went wrong first: a narrow terminal cuts the end.
    counts = format_state_counts({**{state: states[state] for state in FAILED if state in states}, **states})
    parts = [f"{format_share_percent(progress.share)} done"]
    if progress.remaining is not None:
        parts.append(f"{format_slurm_duration(progress.remaining)} to go")
    first = f"{head.id}  {format_local_time_of_day(progress.at)}"
    if progress.queue_at is not None:
        first += f"  {progress.slurm_answer_age_text}"
    if head.foreign is not None:
        first += f"  of {head.foreign.owner}"
    second = f"{', '.join(parts)}; {format_count(runs, 'run')}: {counts}"
    if progress.satellites:
        second += f"; {format_satellites_line(progress.satellites)}"
    return (escape_table_cell(first), escape_table_cell(second))


def list_metric_names(rows: Iterable[RunRow]) -> tuple[str, ...]:
    """Return the names of all metrics that are numbers, in the order in which they appear."""
    metrics = (metric for row in rows for metric in row.metrics.items())
    numbers = ((name, value) for name, value in metrics if isinstance(value, int | float))
    return tuple(dict.fromkeys(name for name, value in numbers if not isinstance(value, bool)))
