"""Gathers what a report says of launches and runs, whatever state they are in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from hpckit.context import Context
from hpckit.features.reporting.curves import read_metric_curves
from hpckit.features.reporting.document import HIGHLIGHTED_RUNS, ReportDocument, ReportLaunch, RunTimeline
from hpckit.features.reporting.hardware import (
    list_gpu_usage_of_run,
    list_step_times_of_ranks,
    read_gpu_activity,
)
from hpckit.model.goodput import Goodput
from hpckit.model.run import RunView
from hpckit.model.search import Direction
from hpckit.model.states import RunState
from hpckit.model.telemetry.usage import NodeUsage
from hpckit.patterns import lazy_pattern
from hpckit.record.launches import Launch
from hpckit.record.store import read_json_object
from hpckit.record.trials import read_search_space
from hpckit.report.best import ReportGoal, sort_best_first
from hpckit.report.results import Results, build_results
from hpckit.report.rows import RunRow, build_run_row
from hpckit.values import replace
from hpckit.version import __version__
from hpckit.views.accounts import compute_goodput_by_run, list_time_spans_by_run
from hpckit.views.describe import describe_viewed_run_or_launch
from hpckit.views.diagnosis import diagnose_runs
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import Ask, LaunchView, build_launch_views, print_view_warnings
from hpckit.views.telemetry import read_resource_usage_of_run

MOST_LANES = 100
"""The timeline has at most as many runs: those that did not end well first."""

_ENDED_WELL = frozenset({RunState.completed})
_BEST = HIGHLIGHTED_RUNS // 2


class _Seen(NamedTuple):
    """A run, with its row and with what it used of each node."""

    launch: Launch
    view: RunView
    row: RunRow
    usages: Sequence[NodeUsage]


def build_report(
    named: Sequence[tuple[Launch, Sequence[int] | None]], context: Context, freshness: Freshness
) -> ReportDocument:
    """Return the report of these launches, each with all its runs (None) or with some."""
    views = build_launch_views(named, context, ask=Ask.open_runs, freshness=freshness)
    print_view_warnings(views, context)
    now = context.now()
    seen = [one for view in views for one in _read_runs_of_launch(view, now)]
    rows = tuple(run.row for run in seen)
    results, goal, own = build_results_best_first(views, rows, now)
    curves, left_out = read_metric_curves(
        [(run.launch, run.view) for run in seen], own, None if goal is None else goal.metric, now
    )
    return ReportDocument(
        title=_format_title(views),
        written_at=now,
        version=__version__,
        launches=tuple(map(_describe_launch, views)),
        rows=rows,
        results=results,
        goal=goal,
        timelines=_read_timelines(views, rows, now),
        curves=curves,
        metrics_left_out=left_out,
        activity=read_gpu_activity((run.launch, run.view, run.usages) for run in seen if run.usages),
        gpus=tuple(gpu for run in seen for gpu in list_gpu_usage_of_run(run.row.run, run.usages)),
        ranks=tuple(rank for run in seen for rank in list_step_times_of_ranks(run.view, run.usages)),
    )


def _read_runs_of_launch(view: LaunchView, now: datetime) -> list[_Seen]:
    kept: dict[int, Goodput] = dict(compute_goodput_by_run(view.launch, view.runs, now, view.kept))
    usages = {
        run.record.index: read_resource_usage_of_run(view.launch, run.record.index) for run in view.runs
    }
    known = diagnose_runs(view.launch, view.runs, kept, usages)
    return [
        _Seen(
            launch=view.launch,
            view=run,
            row=replace(build_run_row(run, kept.get(run.record.index)), findings=known.get(run.record.index)),
            usages=usages[run.record.index].nodes,
        )
        for run in view.runs
    ]


def _format_title(views: Sequence[LaunchView]) -> str:
    if len(views) == 1:
        (view,) = views
        whole = len(view.runs) == len(view.launch.runs)
        return view.launch.id if whole or len(view.runs) > 1 else view.runs[0].record.id
    return f"{len(views)} launches: {', '.join(dict.fromkeys(view.launch.name for view in views))}"


def build_results_best_first(
    views: Sequence[LaunchView], rows: Sequence[RunRow], now: datetime
) -> tuple[Results, ReportGoal | None, frozenset[str]]:
    """Return the results, the best first, by which goal, and the runs with curves of their own."""
    swept = [key for view in views for key in view.launch.swept]
    results = build_results(rows, now, swept=swept, spans=len(views) > 1)
    goal = guess_goal_from_metric_names(results.metrics)
    if len(views) == 1 and views[0].launch.searched:
        search = read_search_space(views[0].launch.paths)
        goal = ReportGoal(metric=search.metric, direction=search.direction, guessed=False)
    if goal is not None:
        results = sort_best_first(results, goal)
    return results, goal, _choose_highlighted_runs(results, goal)


def _choose_highlighted_runs(results: Results, goal: ReportGoal | None) -> frozenset[str]:
    """Return the runs with curves of their own: the best, those with trouble, then any others."""
    best = [row.run for row in results.rows[:_BEST]] if goal is not None else []
    trouble = [row.run for row in results.rows if row.state not in _ENDED_WELL]
    by_index = sorted(results.rows, key=lambda row: (row.launch, row.index))
    order = dict.fromkeys([*best, *trouble, *(row.run for row in by_index)])
    return frozenset(list(order)[:HIGHLIGHTED_RUNS])


def _read_timelines(
    views: Sequence[LaunchView], rows: Sequence[RunRow], now: datetime
) -> tuple[RunTimeline, ...]:
    chosen = sorted(rows, key=lambda row: row.state in _ENDED_WELL)[:MOST_LANES]
    ids = {row.run for row in chosen}
    found: list[RunTimeline] = []
    for view in views:
        some = [run for run in view.runs if run.record.id in ids]
        spans = list_time_spans_by_run(view.launch, some, now)
        found += [
            RunTimeline(run=one.record.id, spans=spans[one.record.index])
            for one in some
            if spans[one.record.index]
        ]
    return tuple(found)


def _describe_launch(view: LaunchView) -> ReportLaunch:
    packages = read_json_object(view.launch.paths.environment).get("packages") or {}
    about = describe_viewed_run_or_launch(view)
    alone = len(view.runs) == 1 < len(view.launch.runs)
    return ReportLaunch(
        about=about,
        reference=view.runs[0].record.id if alone else view.launch.id,
        packages={str(name): str(version) for name, version in packages.items()},
    )


_HELD_OUT = lazy_pattern(r"(?<![a-z])(val|valid|validation|eval|test|dev)(?![a-z])", re.IGNORECASE)
_LOW = lazy_pattern(
    r"(?<![a-z])(loss|nll|perplexity|ppl|error|err|mse|rmse|mae|wer|cer|fid|bpb|bpc)(?![a-z])", re.IGNORECASE
)
_HIGH = lazy_pattern(
    r"(?<![a-z])(acc|acc1|accuracy|f1|auc|auroc|bleu|rouge|map|miou|iou|dice|reward|return|psnr|ssim|"
    r"score|top1|top5|r2|precision|recall)(?![a-z])",
    re.IGNORECASE,
)


def guess_goal_from_metric_names(metrics: Iterable[str]) -> ReportGoal | None:
    """Return the goal of the first metric whose name implies one; None if there is none.

    Metrics of held-out data come before others, and qualities before losses.
    """
    known = [
        (name, Direction.minimize if _LOW.search(name) else Direction.maximize)
        for name in metrics
        if _LOW.search(name) or _HIGH.search(name)
    ]
    if not known:
        return None
    metric, direction = min(
        known, key=lambda one: (not _HELD_OUT.search(one[0]), one[1] is not Direction.maximize)
    )
    return ReportGoal(metric=metric, direction=direction, guessed=True)
