"""What a report says, before it is HTML, Markdown or JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from hpckit.model.goodput import TimeSpan
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.report.best import ReportGoal
from hpckit.report.description import LaunchDescription
from hpckit.report.results import Results
from hpckit.report.rows import RunRow
from hpckit.values import dataclass, field

HIGHLIGHTED_RUNS = 12
"""Curves of more runs are drawn as a band of quantiles."""


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
