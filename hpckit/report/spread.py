"""Results over seeds: rows that differ only in some keys, as one with mean and spread. Pure.

A run counts once it has completed, unless it was pruned. A value counts if it is a finite number: a
missing value, text, NaN or infinity does not, and `n` says how many did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from hpckit.errors import UsageError
from hpckit.model.plain import finite_float_or_none
from hpckit.model.run import PRUNED
from hpckit.model.states import RunState
from hpckit.report.results import ResultColumns, ResultRow, Results
from hpckit.report.selection import SortKey, resolve_sort_column, sort_with_missing_last
from hpckit.values import dataclass, replace

_DIGITS = 4
_NOT_FINITE = frozenset({"nan", "inf", "-inf"})
"""How a metric that is not a finite number is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A metric of `n` runs: the mean, and the sample standard deviation (n - 1) of two or more.

    Both are null if there are too few runs, or if a number is too large.
    """

    mean: float | None
    std: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRow:
    """Runs that differ only in the keys they are taken over; `completed` is how many completed."""

    overrides: Mapping[str, str]
    stage: str | None
    runs: tuple[str, ...]
    completed: int
    metrics: Mapping[str, Spread]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadResults(ResultColumns):
    """All rows, with the keys they are `over` and the names of their columns."""

    over: tuple[str, ...]
    rows: tuple[SpreadRow, ...]

    @property
    def has_stages(self) -> bool:
        """Whether rows belong to stages."""
        return any(row.stage is not None for row in self.rows)


def parse_keys_to_average_over(
    words: Iterable[str], known: Collection[str], varying: Sequence[str]
) -> tuple[str, ...]:
    """Return the keys of `--over seed,fold`; `seed` is also `params.seed`, if no other is.

    Raises UsageError if a key is not `known`, that is, if no run overrides it; the message names
    the `varying` keys.
    """
    keys: dict[str, None] = {}
    for key in (key.lstrip("+") for word in words for key in word.split(",")):
        meant = [key] if key in known else [name for name in known if name.endswith(f".{key}")]
        if len(meant) != 1:
            there = ", ".join(varying) or "none"
            raise UsageError(
                f"--over has {key!r}, and no run overrides it; overrides that vary: {there}",
                hint="--over takes keys of overrides, such as --over seed",
            )
        keys[meant[0]] = None
    return tuple(keys)


def average_results_over_keys(results: Results, over: tuple[str, ...]) -> SpreadResults:
    """Return the results with runs that differ only in `over` as one row."""
    names = tuple(name for name in results.overrides if name not in over)
    metrics = tuple(name for name in results.metrics if _is_number_column(name, results.rows))
    groups: dict[tuple[str | None, ...], list[ResultRow]] = {}
    for row in results.rows:
        key = (row.stage, *(row.overrides.get(name) for name in names))
        groups.setdefault(key, []).append(row)
    rows = tuple(_build_spread_row(rows, names, metrics) for rows in groups.values())
    return SpreadResults(over=over, overrides=names, metrics=metrics, prefixed=results.prefixed, rows=rows)


def _is_number_column(name: str, rows: Sequence[ResultRow]) -> bool:
    values = [row.metrics.get(name) for row in rows]
    return any(finite_float_or_none(value) is not None or str(value) in _NOT_FINITE for value in values)


def _build_spread_row(rows: Sequence[ResultRow], names: Sequence[str], metrics: Sequence[str]) -> SpreadRow:
    done = [row for row in rows if row.state is RunState.completed and row.reason != PRUNED]
    first = rows[0]
    return SpreadRow(
        overrides={name: first.overrides[name] for name in names if name in first.overrides},
        stage=first.stage,
        runs=tuple(row.run for row in rows),
        completed=len(done),
        metrics={name: compute_mean_and_deviation(row.metrics.get(name) for row in done) for name in metrics},
    )


def compute_mean_and_deviation(values: Iterable[Any]) -> Spread:
    """Return mean and sample standard deviation of the finite numbers among these values."""
    numbers = [number for value in values if (number := finite_float_or_none(value)) is not None]
    mean = _compute_finite_or_none(fmean, numbers) if numbers else None
    std = _compute_finite_or_none(stdev, numbers) if len(numbers) > 1 else None
    return Spread(mean=mean, std=std, n=len(numbers))


def _compute_finite_or_none(
    compute: Callable[[Sequence[float]], float], numbers: Sequence[float]
) -> float | None:
    try:
        return finite_float_or_none(compute(numbers))
    except OverflowError:
        return None


def format_mean_deviation_and_count(one: Spread, completed: int) -> str:
    """Return `0.912 ± 0.004 (5)`: mean, deviation to one digit, n; `(4 of 5)` if some lack it."""
    if one.mean is None:
        return ""
    count = str(one.n) if one.n == completed else f"{one.n} of {completed}"
    if one.std is None:
        return f"{one.mean:.{_DIGITS}g} ({count})"
    return f"{_format_mean_and_deviation(one.mean, one.std)} ({count})"


def _format_mean_and_deviation(mean: float, std: float) -> str:
    places = -math.floor(math.log10(std)) if std else _DIGITS
    if not 0 <= places <= 2 * _DIGITS or abs(mean) >= 10**_DIGITS or not std:
        return f"{mean:.{_DIGITS}g} ± {std:.2g}"
    return f"{mean:.{places}f} ± {std:.{places}f}"


def sort_spread_rows(results: SpreadResults, key: SortKey) -> SpreadResults:
    """Return the rows sorted by an override, by the mean of a metric, or by their runs."""
    keys, metrics = results.column_names("overrides"), results.column_names("metrics")
    columns = ("runs", "completed", "stage", *keys, *metrics)
    place = columns.index(resolve_sort_column(key, columns, "results over keys").column)

    def value(row: SpreadRow) -> Any:
        overrides = (row.overrides.get(name) for name in results.overrides)
        means = (row.metrics[name].mean for name in results.metrics)
        return (len(row.runs), row.completed, row.stage, *overrides, *means)[place]

    return replace(
        results, rows=tuple(sort_with_missing_last(results.rows, value, descending=key.descending))
    )


def list_spread_csv_columns(results: SpreadResults) -> tuple[str, ...]:
    """Return the names of the columns of CSV: three for each metric."""
    own = ("runs", "completed")
    overrides, metrics = results.column_names("overrides"), results.column_names("metrics")
    parts = (f"{name}_{part}" for name in metrics for part in ("mean", "std", "n"))
    return (*(("stage",) if results.has_stages else ()), *overrides, *own, *parts)


def list_spread_csv_rows(results: SpreadResults) -> Iterable[tuple[Any, ...]]:
    """Yield the values of each row under `list_spread_csv_columns`."""
    for row in results.rows:
        given = (row.overrides.get(name) for name in results.overrides)
        found = (row.metrics[name] for name in results.metrics)
        values = (value for one in found for value in (one.mean, one.std, one.n))
        stage = (row.stage,) if results.has_stages else ()
        yield (*stage, *given, len(row.runs), row.completed, *values)
