"""The best run of an adaptive sweep, and its results with the best first. Pure.

A run counts once it has completed, and its value if it is a finite number; values reported by a running or
a pruned run are no result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpckit.model.plain import attributes_to_json, finite_float_or_none
from hpckit.model.run import PRUNED
from hpckit.model.search import Direction, Search
from hpckit.model.states import RunState
from hpckit.report.results import ResultRow, Results
from hpckit.report.text import format_number
from hpckit.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGoal:
    """The metric that says which run is the best; `guessed` if only its name tells that."""

    metric: str
    direction: Direction
    guessed: bool


Goal = ReportGoal | Search
"""A metric, and whether a low or a high value of it is good."""


def sort_best_first(results: Results, search: Goal) -> Results:
    """Return the results with the best run first; runs that do not count come last."""
    return replace(results, rows=tuple(sorted(results.rows, key=lambda row: _ranking_key(row, search))))


def find_best_row(rows: Sequence[ResultRow], search: Goal) -> ResultRow | None:
    """Return the best run that counts, None if there is none yet."""
    best = min(rows, key=lambda row: _ranking_key(row, search), default=None)
    return None if best is None or _ranking_key(best, search)[0] else best


def best_row_to_json(row: ResultRow | None, search: Goal) -> dict[str, Any] | None:
    """Return the object for the best run in `results --json`."""
    if row is None:
        return None
    return {
        **attributes_to_json(row, "run index"),
        **attributes_to_json(search, "metric direction"),
        "value": row.metrics[search.metric],
    }


def format_best_run_line(row: ResultRow | None, metric: str) -> str:
    """Return the line about the best run so far of an adaptive sweep."""
    if row is None:
        return f"best so far: no run has completed with a {metric}"
    given = " ".join(f"{key}={value}" for key, value in row.overrides.items())
    return f"best so far: {row.run}  {metric} {format_number(row.metrics[metric])}  {given}".rstrip()


def _ranking_key(row: ResultRow, search: Goal) -> tuple[bool, float, int]:
    """Return the place of a run: whether it does not count, how good it is, its index."""
    value = finite_float_or_none(row.metrics.get(search.metric))
    sign = 1.0 if search.direction is Direction.minimize else -1.0
    size = math.inf if value is None else sign * value
    done = row.state is RunState.completed and row.reason != PRUNED
    return not done or value is None, size, row.index
