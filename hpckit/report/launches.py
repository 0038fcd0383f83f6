"""The list of launches: one line each, and their order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpckit.model.states import RunState
from hpckit.report.rows import LaunchHead
from hpckit.report.selection import SortKey, find_column, ordered, rank
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """A launch, its runs by state, and the metrics of its selected runs."""

    head: LaunchHead
    counts: Mapping[RunState, int]
    metrics: tuple[Mapping[str, Any], ...] = ()


_OWN = ("created", "name", "runs", *RunState.__members__)


def sort_launches(lines: Sequence[LaunchLine], key: SortKey) -> list[LaunchLine]:
    """Return launches sorted by a column; for a metric, the smallest value of each launch counts.

    In descending order the largest value counts. Raises UsageError for an unknown column.
    """
    names = (name for line in lines for one in line.metrics for name in one)
    key = find_column(key, (*_OWN, *dict.fromkeys(names)), "launches")
    return ordered(lines, lambda line: _value(line, key), descending=key.descending)


def _value(line: LaunchLine, key: SortKey) -> Any:
    if key.column == "created":
        return line.head.created_at.timestamp()
    if key.column == "name":
        return line.head.name
    if key.column == "runs":
        return sum(line.counts.values())
    if key.column in RunState.__members__:
        return line.counts.get(RunState(key.column), 0)
    return sorted_value(line, key)


def sorted_value(line: LaunchLine, key: SortKey | None) -> Any:
    """Return the value of the metric that a launch is sorted by, None without such a metric."""
    if key is None or key.column in _OWN:
        return None
    found = [one[key.column] for one in line.metrics if one.get(key.column) is not None]
    if not found:
        return None
    return max(found, key=rank) if key.descending else min(found, key=rank)
