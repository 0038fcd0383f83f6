"""The logged values of runs, for programs: one by one, and as small curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpckit.api.display import Sparkline
from hpckit.features.reporting.gather import guess_goal_from_metric_names
from hpckit.model.ids import build_run_id
from hpckit.model.metrics import metric_value_to_number
from hpckit.record.launches import check_launch_exists
from hpckit.record.layout import LaunchPaths
from hpckit.record.metrics.history import read_metric_history
from hpckit.values import dataclass

HISTORY_COLUMNS = ("run", "attempt", "round", "step", "at", "key", "value", "undone")
_POINTS = 118


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """One logged value of one run: `at` is UTC; it and `step` are None where the row has none.

    `undone` is whether a restart went back behind it, so that another value took its place.
    """

    run: str
    attempt: int
    round: int | None
    step: int | float | None
    at: datetime | None
    key: str
    value: Any
    undone: bool


def read_metric_points(folder: Path, index: int, metrics: Sequence[str]) -> Iterator[MetricPoint]:
    """Yield the logged values of these metrics, all of them by default, in order."""
    check_launch_exists(folder)
    for judged in read_metric_history(LaunchPaths(folder).run(index)):
        row = judged.row
        for key, value in row.values.items():
            if not metrics or key in metrics:
                yield MetricPoint(
                    run=build_run_id(folder.name, index),
                    attempt=row.place[0],
                    round=row.place[1],
                    step=row.step,
                    at=_parse_time(row.at),
                    key=key,
                    value=value,
                    undone=key in judged.undone,
                )


def _parse_time(text: object) -> datetime | None:
    """Return a time that a program wrote; None if it is none. Without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def choose_metric_to_draw(names: Sequence[str]) -> str | None:
    """Return the metric that says most by its name; None if there is none."""
    goal = guess_goal_from_metric_names(names)
    return next(iter(names), None) if goal is None else goal.metric


def draw_metric_curve(folder: Path, index: int, metric: str) -> Sparkline | None:
    """Return the curve of a run that restarts have not undone; None without any number."""
    points = (point for point in read_metric_points(folder, index, [metric]) if not point.undone)
    numbers = [metric_value_to_number(point.value) for point in points]
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    return Sparkline(tuple(finite[:: max(len(finite) // _POINTS, 1)])) if finite else None
