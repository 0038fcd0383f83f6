"""One run in detail in `hpckit top`, and a page that shows all of one look. Pure.

All texts are harmless on a terminal: control characters are escaped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hpckit.features.top.frame import GpuNow, RunActivity, TopColumn, TopDetail, TopFrame
from hpckit.features.top.order import format_heading
from hpckit.features.top.plot import draw_braille_plot
from hpckit.model import events
from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.counted import format_count, format_ranges, format_step_of_total, format_whole_percent
from hpckit.model.failure import Failure, RankExit
from hpckit.model.moment import format_local_time_of_day
from hpckit.model.states import RunState
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.patterns import lazy_pattern
from hpckit.report.escape import escape_controls, escape_table_cell
from hpckit.report.rows import LaunchHead, RunRow
from hpckit.report.text import Page, TextTable, format_launch_head, format_number, format_run_counts
from hpckit.values import replace

_GIB = 1 << 30
_COLOUR = lazy_pattern(r"\x1b\[[0-9;]*m")
_OWN_PREFIX = lazy_pattern(r"^[0-9]{4}-[0-9]{2}-[0-9]{2} ([0-9:]{8}),[0-9]{3} rank=[0-9]+(?= )")
_PLOT_LINES = 5
_ONCE_WIDTH = 76
_ONCE_LINES = 10


def format_plot_title(detail: TopDetail) -> str:
    """Return the line above the curve: the metric, its latest value and its limits."""
    if not detail.metric:
        return "no metrics yet"
    if detail.loading:
        return f"{escape_table_cell(detail.metric)}: reading"
    if not detail.points:
        return f"{escape_table_cell(detail.metric)}: no numbers yet"
    values = [value for _, value in detail.points]
    last = detail.points[-1]
    return (
        f"{escape_table_cell(detail.metric)} {format_number(last[1])}; "
        f"{format_number(min(values))} to {format_number(max(values))}"
    )


def format_gpus_and_ranks(activity: RunActivity, width: int | None = None) -> list[str]:
    """Return a line for each GPU, then one for each rank: step time, and its share of waiting.

    What is longer than `width` lacks its node, and ranks are `r0`.
    """
    lines = [_format_gpu_load(gpu) for gpu in activity.gpus]
    ranks = sorted(activity.ranks, key=lambda rank: rank.rank)
    long = [_format_rank_step_times(rank) for rank in ranks]
    if width is not None and any(len(line) > width for line in long):
        long = [_format_rank_step_times(replace(rank, node=""), word="r") for rank in ranks]
    lines += long
    return [escape_table_cell(line) for line in lines] or ["nothing was measured yet"]


def _format_gpu_load(gpu: GpuNow) -> str:
    words = [f"GPU {'' if gpu.index is None else gpu.index}".rstrip()]
    words += [format_whole_percent(gpu.utilization)] if gpu.utilization is not None else []
    if gpu.memory_bytes is not None:
        whole = gpu.memory_total_bytes
        of = f"/{whole / _GIB:.0f}" if whole else ""
        words.append(f"{gpu.memory_bytes / _GIB:.0f}{of} GiB")
    words += [f"{gpu.power_w:.0f} W"] if gpu.power_w is not None else []
    words += [f"{gpu.temperature_c:.0f}°"] if gpu.temperature_c is not None else []
    return " ".join([*words, gpu.node])


def _format_rank_step_times(one: RankSteps, word: str = "rank ") -> str:
    words = [f"{word}{one.rank}"]
    if one.steps > 0:
        words.append(f"{one.seconds / one.steps:.3g} s")
    if one.data_s is not None and one.seconds > 0:
        words.append(f"data {format_whole_percent(one.data_s / one.seconds)}")
    if one.waiting_s is not None and one.seconds > 0:
        words.append(f"wait {format_whole_percent(one.waiting_s / one.seconds)}")
    return " ".join(filter(None, (*words, one.node)))


def format_last_log_lines(text: str, most: int) -> tuple[str, ...]:
    """Return the last lines of a log; of a line that was drawn over, what stood there last.

    Lines of `run.logger` lack date and rank: a pane has room for little more.
    """
    bare = _COLOUR.sub("", text).replace("\r\n", "\n")
    lines = [line.rpartition("\r")[2] or line.rstrip("\r") for line in bare.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    lines = [_OWN_PREFIX.sub(r"\1", line.replace("\t", "    ")) for line in lines[-most:]]
    return tuple(map(escape_table_cell, lines))


def update_step_from_curve(rows: Sequence[RunRow], detail: TopDetail | None) -> list[RunRow]:
    """Return the rows, that of the run in detail at the step of its curve if that is newer.

    The metrics of a run are often a second or two ahead of its own word.
    """
    last = int(detail.points[-1][0]) if detail is not None and detail.points else -1
    return [
        replace(row, step=last)
        if detail is not None and row.index == detail.index and _is_newer_step(last, row)
        else row
        for row in rows
    ]


def _is_newer_step(last: int, row: RunRow) -> bool:
    """Return whether a step in metrics is a newer one of the run: users may count otherwise."""
    return row.step is not None and row.total is not None and row.step < last < row.total


EventNote = tuple[datetime, str]
"""When something happened, and what."""


def format_events(notes: Iterable[EventNote], most: int) -> tuple[str, ...]:
    """Return a line for each of the latest of these events, in order of time."""
    latest = sorted(notes, key=lambda note: note[0])[-most:]
    return tuple(
        escape_table_cell(f"{format_local_time_of_day(at).rpartition(' ')[0]} {words}")
        for at, words in latest
    )


def list_state_changes(
    before: Mapping[int, RunState], rows: Iterable[RunRow], at: datetime
) -> list[EventNote]:
    """Return what to say of each run whose state has changed since the previous look."""
    return [
        (at, f"run {row.index}: {before[row.index]} → {row.state}{_format_cause(row)}")
        for row in rows
        if row.index in before and before[row.index] is not row.state
    ]


def _format_cause(row: RunRow) -> str:
    return "" if row.failure is None else f" ({row.failure.cause})"


def render_top_page(head: LaunchHead, frame: TopFrame, shown: int, now: datetime) -> Page:
    """Return one look as a page: what the application shows, below each other."""
    rows = frame.rows[:shown]
    table = TextTable(
        header=tuple(format_heading(name, frame.metric) for name in TopColumn),
        rows=tuple(tuple(row.cells[name] for name in TopColumn) for row in rows),
        spare=(TopColumn.goodput, TopColumn.power, TopColumn.step_time, TopColumn.gpu),
        flexible=(TopColumn.overrides,),
    ).without_empty_columns()
    page: list[TextTable | str] = [format_launch_head(head, now), table]
    page.append(format_run_counts([row.state for row in frame.rows]))
    if len(frame.rows) > len(rows):
        page.append(f"runs {shown} to {len(frame.rows) - 1} are not shown")
    return [*page, *(_format_detail(frame.detail) if frame.detail is not None else [])]


def _format_detail(detail: TopDetail) -> list[str]:
    plot = draw_braille_plot(detail.points, _ONCE_WIDTH, _PLOT_LINES)
    lines = ["", detail.title, format_plot_title(detail), *plot]
    if detail.activity.gpus or detail.activity.ranks:
        lines += ["", *format_gpus_and_ranks(detail.activity)]
    if detail.log:
        last = detail.log[-_ONCE_LINES:]
        lines += ["", escape_controls(detail.log_title), *(f"  {line}" for line in last)]
    if detail.events:
        lines += ["", "events", *(f"  {line}" for line in detail.events[-_ONCE_LINES:])]
    return lines


def format_event(event: events.Event) -> str:
    """Return what happened, in one line; empty for what is not worth one."""
    words = _WORDS.get(type(event))
    return "" if words is None else words(event)


def _format_attempt_started(event: events.AttemptStarted) -> str:
    job = f", job {event.job}" if event.job else ""
    return f"attempt {event.attempt} began on {event.host}{job}"


def _format_rank_exited(event: events.RankExited) -> str:
    end: RankExit = event.exit
    code = f" ({end.signal or end.code})" if end.signal or end.code else ""
    how = f", {end.exception}: {end.message}" if end.exception else ""
    return f"rank {end.rank} on {end.node} ended{code}{how}"


def _format_straggler_found(event: events.StragglerFound) -> str:
    slow = event.straggler
    return f"{slow.rank_name} on {slow.node} is {format_whole_percent(slow.slower_by)} slower than its peers"


def _format_nodes_inspected(event: events.NodesInspected) -> str:
    count = len(event.fine) + len(event.troubled)
    bad = [f"{node.node} {node.verdict}" for node in event.troubled]
    return f"inspected {format_count(count, 'node')}: {', '.join(bad) or 'all ok'}"


def _format_failure(failure: Failure | None) -> str:
    return "" if failure is None else f" ({failure.cause}: {failure.message})"


_WORDS: Mapping[type[events.Event], Callable[[Any], str]] = {
    events.AttemptStarted: _format_attempt_started,
    events.RoundStarted: lambda event: (
        f"round {event.round}: {format_count(event.world_size, 'rank')} on "
        f"{compress_to_hostlist(event.nodes)}"
    ),
    events.StepReached: lambda event: f"round {event.round}: first step {format_step_of_total(event.step)}",
    events.RankExited: _format_rank_exited,
    events.RanksExited: lambda event: f"ranks {event.ranks} ended: {event.reason}",
    events.CheckpointSaved: lambda event: f"saved step {event.step} in {event.duration_s:.1f} s",
    events.RoundEnded: lambda event: (
        f"round {event.round} ended{_format_failure(event.failure)}; next: {event.action.replace('_', ' ')}"
    ),
    events.AttemptEnded: lambda event: f"attempt ended: {event.state}{_format_failure(event.failure)}",
    events.NodeLost: lambda event: f"node {event.node} was silent for {event.silent_s:.0f} s",
    events.NodeDraining: lambda event: f"node {event.node} is being drained: {event.action}",
    events.StragglerFound: _format_straggler_found,
    events.NodesInspected: _format_nodes_inspected,
    events.RequeueAsked: lambda event: f"requeue: {event.outcome}",
    events.Warned: lambda event: f"warning: {event.message}",
    events.NoticeHeard: lambda event: f"notice {event.signal}: {event.cause}",
    events.Suspended: lambda event: f"was suspended for {event.seconds:.0f} s",
    events.Submitted: lambda event: f"Slurm accepted job {event.job}",
    events.SubmitRefused: lambda event: f"submission refused: {event.message}",
    events.CancelRequested: lambda event: f"cancellation of runs {format_ranges(event.runs)}",
    events.LocalStarted: lambda event: f"local executor {event.pid} began on {event.host}",
    events.JobAdded: lambda event: f"{format_count(len(event.job.runs), 'run')} submitted again",
}
