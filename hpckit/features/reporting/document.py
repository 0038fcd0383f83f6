"""What a report says, before it is HTML, Markdown or JSON, and its sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from hpckit.model.counted import format_count
from hpckit.model.goodput import Interruption, TimeSpan
from hpckit.model.moment import format_local_datetime
from hpckit.model.search import Direction
from hpckit.model.states import RunState
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.usage import EnergyBill, sum_energy_bills
from hpckit.report.account import format_goodput_line
from hpckit.report.best import ReportGoal, find_best_row
from hpckit.report.description import LaunchDescription
from hpckit.report.diagnosis import VerdictGroup, format_energy_and_costs
from hpckit.report.failures import format_index_ranges
from hpckit.report.results import Results
from hpckit.report.rows import RunRow
from hpckit.report.text import format_number, format_run_counts
from hpckit.values import dataclass, field

HIGHLIGHTED_RUNS = 12
"""Curves of more runs are drawn as a band of quantiles."""
_OPEN = frozenset({RunState.pending, RunState.running})
_FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoints:
    """Values over steps; null is a gap.

    `wall_s` and `productive_s` are when each was logged, in seconds of its run; empty if unknown.
    """

    steps: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()
    wall_s: tuple[float, ...] = ()
    productive_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurve:
    """A metric of one run: what holds, and what restarts have undone, a piece for each round.

    Of very many pieces it has the longest. `not_finite` counts values that are NaN or infinite, of
    what holds.
    """

    run: str
    live: CurvePoints
    undone: tuple[CurvePoints, ...] = ()
    not_finite: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveBand:
    """Where the curves of many runs are: at each step the tenth, the half and nine tenths."""

    runs: int
    steps: tuple[float, ...]
    low: tuple[float, ...]
    middle: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCurves:
    """A metric over steps: of a few runs each, of the others as a band."""

    metric: str
    runs: tuple[RunCurve, ...]
    band: CurveBand | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeline:
    """What a run did when; the spans add up to its wall time."""

    run: str
    spans: tuple[TimeSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLane:
    """What one GPU did in each column of time; null where nothing was measured.

    `busy` and `slowed` (by heat or the power brake) are shares of the time.
    """

    node: str
    gpu: str
    busy: tuple[float | None, ...]
    temperature_c: tuple[float | None, ...] = ()
    slowed: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuActivity:
    """GPUs over time, in columns of the same length from `begin` to `end`.

    `power_w` is that of all GPUs together. `left_out` are GPUs that have no lane.
    """

    begin: datetime
    end: datetime
    lanes: tuple[GpuLane, ...]
    power_w: tuple[float | None, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsed:
    """What one run used of one GPU: means over its time, and the most memory."""

    run: str
    node: str
    gpu: str
    name: str
    hours: float
    utilization: float | None
    memory_peak_bytes: int | None
    memory_bytes: int | None
    power_w: float | None
    heat_share: float | None
    power_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUsed:
    """The steps of one rank of a run. `slower_by` is set if it is a straggler."""

    run: str
    steps: RankSteps
    slower_by: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLaunch:
    """A launch: what was frozen of it, and how to name it in commands."""

    about: LaunchDescription
    reference: str
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDocument:
    """Everything in a report. `rows` have their account and findings.

    `timelines` are those of the first runs only, if there are very many. `metrics_left_out` counts
    metrics that have no curves because there are too many.
    """

    title: str
    written_at: datetime
    version: str
    launches: tuple[ReportLaunch, ...]
    rows: tuple[RunRow, ...]
    results: Results
    goal: ReportGoal | None
    timelines: tuple[RunTimeline, ...]
    curves: tuple[MetricCurves, ...]
    metrics_left_out: int = 0
    activity: GpuActivity | None = None
    gpus: tuple[GpuUsed, ...] = ()
    ranks: tuple[RankUsed, ...] = ()


def format_runs_of_verdict(group: VerdictGroup, total: int) -> str:
    """Return which of the runs a verdict is about; empty for a report of one run."""
    if total == 1:
        return ""
    which = format_run_ids(group.rows)
    return which if len(group.rows) == 1 else f"{which}; the numbers are those of {group.example.run}"


def format_run_ids(rows: Sequence[RunRow]) -> str:
    """Return runs in a few words: their ids, or if there are many, how many of which indices."""
    if len(rows) <= _FEW:
        return ", ".join(row.run for row in rows)
    launches = {row.run.rpartition(".")[0] for row in rows}
    if len(launches) > 1:
        return f"{format_count(len(rows), 'run')} of {format_count(len(launches), 'launch')}"
    return f"{format_count(len(rows), 'run')} ({format_index_ranges(row.index for row in rows)})"


def explain_no_verdict(rows: Sequence[RunRow]) -> str:
    """Return why there is no verdict."""
    if not any(row.attempt for row in rows):
        return "No verdict: no run has begun."
    measured = [
        row for row in rows if row.findings is not None and row.findings.telemetry.gpu_utilization is not None
    ]
    if measured:
        return "No verdict: nothing that was measured holds these runs back."
    return (
        "No verdict: neither restarts nor saves cost much, and there are too few measurements of "
        "GPUs and steps to say more."
    )


def format_summary_sentences(document: ReportDocument) -> list[str]:
    """Return a few sentences on how the runs ended: states, goodput, energy."""
    rows = document.rows
    going = any(row.state in _OPEN for row in rows)
    states = format_run_counts([row.state for row in rows])
    lines = [f"{states}; some have not ended yet" if going else states]
    accounts = [row.goodput for row in rows if row.goodput is not None]
    lines += [line.strip() for line in format_goodput_line(accounts, always=True)]
    lines += _format_energy_sentence(row.findings.energy for row in rows if row.findings is not None)
    return [f"{line[:1].upper()}{line[1:]}." for line in lines]


def _format_energy_sentence(bills: Iterable[EnergyBill]) -> list[str]:
    """Return the energy of runs as a sentence; none if nothing is known."""
    together = sum_energy_bills(bills)
    words = format_energy_and_costs(together)
    hours = f"{together.gpu_hours:.3g} GPU hours"
    return [", ".join([f"{hours}: {words[0]}", *words[1:]])] if words else []


def format_best_run(document: ReportDocument) -> list[str]:
    """Return which run is the best, and by what; none for a single run."""
    goal = document.goal
    if goal is None or len(document.rows) == 1:
        return []
    best = find_best_row(document.results.rows, goal)
    side = "lowest" if goal.direction is Direction.minimize else "highest"
    by = f"the {side} {goal.metric} at its end"
    if best is None:
        return [f"No run has completed with a {goal.metric}, so there is no best run."]
    given = " ".join(f"{key}={value}" for key, value in best.overrides.items())
    guess = "; the name of the metric tells which is better" if goal.guessed else ""
    run = f"{best.run} ({given})" if given else best.run
    return [f"Best run: {run} with {by}, {format_number(best.metrics[goal.metric])}{guess}."]


def list_interruptions(rows: Iterable[RunRow]) -> list[tuple[RunRow, Interruption]]:
    """Return the interruptions that runs survived or ended with."""
    return [
        (row, interruption)
        for row in rows
        if row.goodput is not None
        for interruption in row.goodput.interruptions
    ]


def shorten_run_name(document: ReportDocument, run: str) -> str:
    """Return a run's name beside others: its id, or `.3` if there is one launch."""
    several = len(document.launches) > 1
    return run if several else f".{run.rpartition('.')[2]}"


def format_written_by(document: ReportDocument) -> str:
    """Return when the report was written, and by what."""
    return f"written {format_local_datetime(document.written_at)} by hpckit {document.version}"
