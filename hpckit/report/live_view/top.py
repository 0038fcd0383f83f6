"""What `hpckit top` shows: frozen view models of runs, of one run in detail, and of a page. Pure.

The terminal application maps these to widgets, and nothing else. All texts are harmless on a
terminal: control characters are escaped here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from hpckit.errors import UsageError
from hpckit.model.counted import counted
from hpckit.model.moment import local_clock
from hpckit.model.states import RunState
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import GpuDevice, GpuGauge, GpuRow
from hpckit.report.escape import escaped, escaped_cell
from hpckit.report.live_view.live import Progress
from hpckit.report.live_view.plot import Point, plot_lines
from hpckit.report.overrides import override_cells
from hpckit.report.rows import LaunchHead, RunRow, count_states
from hpckit.report.selection import Filter, make_filter, ordered, rank
from hpckit.report.text import (
    Page,
    TextTable,
    count_line,
    duration,
    head_line,
    number,
    percent,
    states_text,
    steps_text,
)

_GIB = 1 << 30
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PLOT_LINES = 5
_ONCE_WIDTH = 76
_ONCE_LINES = 10


class TopColumn(StrEnum):
    """A column of the table of runs; its value is the heading."""

    run = "run"
    overrides = "overrides"
    state = "state"
    step = "step"
    step_time = "s/step"
    metric = "metric"
    goodput = "goodput"
    gpu = "GPU"
    power = "W"


_WIDTHS = {
    TopColumn.run: 4,
    TopColumn.state: 11,
    TopColumn.step: 11,
    TopColumn.step_time: 7,
    TopColumn.metric: 9,
    TopColumn.goodput: 7,
    TopColumn.gpu: 5,
    TopColumn.power: 6,
}
_LEAST_OVERRIDES, _MOST_OVERRIDES = 10, 40
_IN_ORDER = (
    *(TopColumn.run, TopColumn.state, TopColumn.step, TopColumn.metric, TopColumn.gpu),
    *(TopColumn.step_time, TopColumn.power, TopColumn.goodput),
)
"""What a narrow terminal keeps longest, first."""


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
        known = [one.utilization for one in self.gpus if one.utilization is not None]
        return sum(known) / len(known) if known else None

    @property
    def power_w(self) -> float | None:
        """The power of all its GPUs."""
        known = [one.power_w for one in self.gpus if one.power_w is not None]
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


def gpu_now(node: str, row: GpuRow, device: GpuDevice | None) -> GpuNow:
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


def mean_step_s(ranks: Iterable[RankSteps]) -> float | None:
    """Return how long a step takes, over all ranks that reported any."""
    known = [(one.seconds, one.steps) for one in ranks if one.steps > 0]
    steps = sum(count for _, count in known)
    return sum(seconds for seconds, _ in known) / steps if steps else None


def top_rows(
    rows: Sequence[RunRow],
    activities: Mapping[int, RunActivity],
    goodput: Mapping[int, float | None],
    *,
    metric: str,
    common: frozenset[str] = frozenset(),
) -> tuple[TopRow, ...]:
    """Return the rows of the table. What was not read of a run has no cell and no value."""
    words = override_cells((row.overrides for row in rows), common)
    idle = RunActivity()
    return tuple(
        _top_row(row, cell, activities.get(row.index, idle), goodput.get(row.index), metric)
        for row, cell in zip(rows, words, strict=True)
    )


def _top_row(
    row: RunRow, words: str, activity: RunActivity, goodput: float | None, metric: str
) -> TopRow:
    runs = row.state is RunState.running
    step_s = activity.step_s if runs else None
    busy = activity.utilization if runs else None
    power = activity.power_w if runs else None
    cells = {
        TopColumn.run: str(row.index),
        TopColumn.overrides: words,
        TopColumn.state: row.state.value,
        TopColumn.step: steps_text(row.step, row.total).replace(" of ", "/"),
        TopColumn.step_time: _seconds(step_s),
        TopColumn.metric: number(row.metrics.get(metric)),
        TopColumn.goodput: _share(goodput),
        TopColumn.gpu: _share(busy),
        TopColumn.power: _whole(power),
    }
    values = {
        TopColumn.run: row.index,
        TopColumn.overrides: words or None,
        TopColumn.state: row.state.value,
        TopColumn.step: row.step,
        TopColumn.step_time: step_s,
        TopColumn.metric: row.metrics.get(metric),
        TopColumn.goodput: goodput,
        TopColumn.gpu: busy,
        TopColumn.power: power,
    }
    return TopRow(
        index=row.index,
        run=escaped_cell(row.run),
        state=row.state,
        overrides=row.overrides,
        cells={name: escaped_cell(cell) for name, cell in cells.items()},
        values=values,
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def head_lines(head: LaunchHead, progress: Progress, runs: int) -> tuple[str, ...]:
    """Return the two lines on top: the launch, and how its runs stand."""
    counts = states_text(count_states(progress.states))
    parts = [f"{percent(progress.share)} done"]
    if progress.remaining is not None:
        parts.append(f"{duration(progress.remaining)} to go")
    first = f"{head.id}  {local_clock(progress.at)}"
    if progress.queue_at is not None:
        age = duration(max(progress.at - progress.queue_at, timedelta(0)))
        first += f"  queue as of {age} ago"
    if head.foreign is not None:
        first += f"  of {head.foreign.owner}"
    second = f"{', '.join(parts)}; {counted(runs, 'run')}: {counts}"
    return (escaped_cell(first), escaped_cell(second))


def metric_names(rows: Iterable[RunRow]) -> tuple[str, ...]:
    """Return the names of all metrics that are numbers, in the order in which they appear."""
    names: dict[str, None] = {}
    for row in rows:
        for name, value in row.metrics.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                names.setdefault(name)
    return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOrder:
    """What the table is sorted by."""

    column: TopColumn = TopColumn.run
    descending: bool = False

    @property
    def next(self) -> TopOrder:
        """The next order when a user asks for another one: each column, in both directions."""
        if not self.descending:
            return TopOrder(column=self.column, descending=True)
        columns = list(TopColumn)
        return TopOrder(column=columns[(columns.index(self.column) + 1) % len(columns)])

    @property
    def words(self) -> str:
        """The order in words."""
        return f"{self.column}{', largest first' if self.descending else ''}"


def arranged(rows: Iterable[TopRow], words: str, order: TopOrder) -> tuple[TopRow, ...]:
    """Return the rows that match all words, in order.

    `KEY=GLOB` is as in `--override`; another word has to be part of an override or of the state.
    """
    filters = [_word_filter(word) for word in words.split()]
    found = [row for row in rows if all(_takes(one, row) for one in filters)]
    if order.column is TopColumn.state:
        places = {state.value: place for place, state in enumerate(RunState)}
        return tuple(
            ordered(found, lambda row: places[row.state.value], descending=order.descending)
        )
    return tuple(ordered(found, lambda row: _sortable(row, order), descending=order.descending))


def _sortable(row: TopRow, order: TopOrder) -> Any:
    value = row.values.get(order.column)
    return None if rank(value)[1:] == (0.0, "nan") else value


def _word_filter(word: str) -> Filter | str:
    try:
        return make_filter(overrides=[word])
    except UsageError:
        return word


def _takes(wanted: Filter | str, row: TopRow) -> bool:
    if isinstance(wanted, Filter):
        return wanted.takes(row.state, row.overrides)
    return any(wanted in text for text in (*row.overrides, row.state.value))


def filled_columns(rows: Iterable[TopRow]) -> frozenset[TopColumn]:
    """Return the columns in which any run has something."""
    empty = set(TopColumn)
    for row in rows:
        empty -= {name for name in empty if row.cells[name]}
        if not empty:
            break
    return frozenset(TopColumn) - empty


def fitting_columns(
    width: int, filled: frozenset[TopColumn] = frozenset(TopColumn)
) -> tuple[tuple[TopColumn, int], ...]:
    """Return those of the columns that fit into so many characters, with a blank behind each."""
    left, kept = width, set[TopColumn]()
    for column in _IN_ORDER:
        if column not in filled:
            continue
        if _WIDTHS[column] + 1 <= left:
            kept.add(column)
            left -= _WIDTHS[column] + 1
        else:
            break
    widths = dict(_WIDTHS)
    if TopColumn.overrides in filled and left > _LEAST_OVERRIDES:
        kept.add(TopColumn.overrides)
        widths[TopColumn.overrides] = min(left - 1, _MOST_OVERRIDES)
    return tuple((column, widths[column]) for column in TopColumn if column in kept)


def heading(column: TopColumn, metric: str) -> str:
    """Return the heading of a column: that of the metric is its name."""
    return escaped_cell(metric) if column is TopColumn.metric and metric else column.value


def plot_title(detail: TopDetail) -> str:
    """Return the line above the curve: the metric, its latest value and its limits."""
    if not detail.metric:
        return "no metrics yet"
    if detail.loading:
        return f"{escaped_cell(detail.metric)}: reading"
    if not detail.points:
        return f"{escaped_cell(detail.metric)}: no numbers yet"
    values = [value for _, value in detail.points]
    last = detail.points[-1]
    return (
        f"{escaped_cell(detail.metric)} {number(last[1])} at step {number(last[0])}; "
        f"{number(min(values))} to {number(max(values))}"
    )


def gpu_lines(activity: RunActivity) -> list[str]:
    """Return a line for each GPU, then one for each rank: step time, and its share of waiting."""
    lines = [_gpu_line(one) for one in activity.gpus]
    lines += [_rank_line(one) for one in sorted(activity.ranks, key=lambda one: one.rank)]
    return [escaped_cell(line) for line in lines] or ["nothing was measured yet"]


def _gpu_line(gpu: GpuNow) -> str:
    words = [f"GPU {'' if gpu.index is None else gpu.index}".rstrip()]
    words += [f"{_share(gpu.utilization):>4}"] if gpu.utilization is not None else []
    if gpu.memory_bytes is not None:
        whole = gpu.memory_total_bytes
        of = f"/{whole / _GIB:.0f}" if whole else ""
        words.append(f"{gpu.memory_bytes / _GIB:.0f}{of} GiB")
    words += [f"{gpu.power_w:.0f} W"] if gpu.power_w is not None else []
    words += [f"{gpu.temperature_c:.0f}°"] if gpu.temperature_c is not None else []
    return " ".join([*words, gpu.node])


def _rank_line(one: RankSteps) -> str:
    words = [f"rank {one.rank}"]
    if one.steps > 0:
        words.append(f"{one.seconds / one.steps:.3g} s")
    if one.data_s is not None and one.seconds > 0:
        words.append(f"data {one.data_s / one.seconds:.0%}")
    if one.waiting_s is not None and one.seconds > 0:
        words.append(f"wait {one.waiting_s / one.seconds:.0%}")
    return " ".join([*words, one.node])


def log_lines(text: str, most: int) -> tuple[str, ...]:
    """Return the last lines of a log; of a line that was drawn over, what stood there last."""
    bare = _COLOUR.sub("", text).replace("\r\n", "\n")
    lines = [line.rpartition("\r")[2] or line.rstrip("\r") for line in bare.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(escaped_cell(line.replace("\t", "    ")) for line in lines[-most:])


EventNote = tuple[datetime, str]
"""When something happened, and what."""


def event_lines(notes: Iterable[EventNote], most: int) -> tuple[str, ...]:
    """Return a line for each of the latest of these events, in order of time."""
    latest = sorted(notes, key=lambda note: note[0])[-most:]
    return tuple(
        escaped_cell(f"{local_clock(at).rpartition(' ')[0]} {words}") for at, words in latest
    )


def state_changes(
    before: Mapping[int, RunState], rows: Iterable[RunRow], at: datetime
) -> list[EventNote]:
    """Return what to say of each run whose state has changed since the previous look."""
    return [
        (at, f"run {row.index}: {before[row.index]} → {row.state}{_cause(row)}")
        for row in rows
        if row.index in before and before[row.index] is not row.state
    ]


def _cause(row: RunRow) -> str:
    return "" if row.failure is None else f" ({row.failure.cause})"


def top_page(head: LaunchHead, frame: TopFrame, shown: int, now: datetime) -> Page:
    """Return one look as a page: what the application shows, below each other."""
    rows = frame.rows[:shown]
    kept = [name for name in TopColumn if any(row.cells[name] for row in rows)]
    table = TextTable(
        header=tuple(heading(name, frame.metric) for name in kept),
        rows=tuple(tuple(row.cells[name] for name in kept) for row in rows),
        spare=(TopColumn.goodput, TopColumn.power, TopColumn.step_time, TopColumn.gpu),
        flexible=(TopColumn.overrides,),
    )
    page: list[TextTable | str] = [head_line(head, now), table]
    page.append(count_line([row.state for row in frame.rows]))
    if len(frame.rows) > len(rows):
        page.append(f"runs {shown} to {len(frame.rows) - 1} are not shown")
    return [*page, *(_detail_lines(frame.detail) if frame.detail is not None else [])]


def _detail_lines(detail: TopDetail) -> list[str]:
    plot = plot_lines(detail.points, _ONCE_WIDTH, _PLOT_LINES)
    lines = ["", detail.title, plot_title(detail), *plot]
    if detail.activity.gpus or detail.activity.ranks:
        lines += ["", *gpu_lines(detail.activity)]
    if detail.log:
        last = detail.log[-_ONCE_LINES:]
        lines += ["", escaped(detail.log_title), *(f"  {line}" for line in last)]
    if detail.events:
        lines += ["", "events", *(f"  {line}" for line in detail.events[-_ONCE_LINES:])]
    return lines
