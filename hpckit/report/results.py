"""The table of a sweep: what differed between runs beside what came out.

Responsible for finding the overrides that differ and for sorting; pure, it must not format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from hpckit.errors import UsageError
from hpckit.model.goodput import Goodput, Parts
from hpckit.model.states import RunState
from hpckit.report.rows import RunRow

_PARTS = tuple(field.name for field in fields(Parts))
ACCOUNT_COLUMNS = (
    *("goodput", "ettr", "ettr_expected", "wall_s", *(f"{name}_s" for name in _PARTS)),
    *("attempts", "rounds", "failures", "planned", "lost_steps", "saves", "saved_bytes"),
)
"""What --csv adds of a run's account; `wall_s` is the sum of its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One run: its differing overrides, its last value per metric, and its account.

    `wall_s` is how long its latest attempt has run.
    """

    run: str
    index: int
    overrides: Mapping[str, str]
    state: RunState
    step: int | None
    wall_s: float | None
    metrics: Mapping[str, Any]
    goodput: Goodput | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All rows, with the names of the columns that differ from sweep to sweep."""

    overrides: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[ResultRow, ...]


def make_results(rows: Sequence[RunRow], now: datetime) -> Results:
    """Return the results of runs; `now` ends the wall time of those still running."""
    assigned = [dict(map(_split, row.overrides)) for row in rows]
    names = _differing(assigned)
    return Results(
        overrides=names,
        metrics=tuple(dict.fromkeys(name for row in rows for name in row.metrics)),
        rows=tuple(
            _result_row(row, {name: given[name] for name in names if name in given}, now)
            for row, given in zip(rows, assigned, strict=True)
        ),
    )


def _result_row(row: RunRow, overrides: Mapping[str, str], now: datetime) -> ResultRow:
    elapsed = row.elapsed(now)
    return ResultRow(
        run=row.run,
        index=row.index,
        overrides=overrides,
        state=row.state,
        step=row.step,
        wall_s=None if elapsed is None else round(elapsed.total_seconds(), 3),
        metrics=row.metrics,
        goodput=row.goodput,
    )


def _split(override: str) -> tuple[str, str]:
    """Split an override of Hydra's grammar: `+lr=0.1` is (lr, 0.1), `~opt` is (opt, ~)."""
    if override.startswith("~"):
        return override[1:].partition("=")[0], "~"
    key, _, value = override.lstrip("+").partition("=")
    return key, value


def _differing(assigned: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the keys not all runs set to the same value, in order of appearance."""
    keys = dict.fromkeys(key for given in assigned for key in given)
    return tuple(key for key in keys if len({given.get(key) for given in assigned}) > 1)


def sort_results(results: Results, key: str, *, descending: bool = False) -> Results:
    """Return the results sorted by a column; runs without a value come last, in either order.

    Raises UsageError for a column that is none, naming those there are.
    """
    columns = (
        *("index", "state", "step", "time", *results.overrides, *results.metrics),
        *ACCOUNT_COLUMNS,
    )
    if key not in columns:
        raise UsageError(
            f"results have no column {key!r}; they have {', '.join(columns)}",
            hint="give --sort one of these",
        )
    present = [row for row in results.rows if value(row, key) is not None]
    absent = [row for row in results.rows if value(row, key) is None]
    present.sort(key=lambda row: _rank(value(row, key)), reverse=descending)
    return Results(overrides=results.overrides, metrics=results.metrics, rows=(*present, *absent))


def value(row: ResultRow, column: str) -> Any:
    """Return what a row has in a column, None where nothing; our own columns come first."""
    own = {"index": row.index, "state": row.state, "step": row.step, "time": row.wall_s}
    for known in (own, row.overrides, row.metrics):
        if column in known:
            return known[column]
    return account_values(row.goodput).get(column)


def _rank(item: Any) -> tuple[int, float, str]:
    """Return a key that orders numbers (also as text) by size before other text."""
    try:
        number = float(item)
    except (TypeError, ValueError):
        return (1, 0.0, str(item))
    # NaN compares with nothing: it is worse than any number.
    return (0, number, "") if number == number else (1, 0.0, "nan")  # noqa: PLR0124


def header(results: Results) -> tuple[str, ...]:
    """Return the names of all columns, in the order they are shown."""
    return ("index", *results.overrides, "state", *results.metrics, "step", "time")


def cells(results: Results) -> Iterable[tuple[Any, ...]]:
    """Yield the values of each row under `header`."""
    for row in results.rows:
        own = (row.overrides.get(name) for name in results.overrides)
        metrics = (row.metrics.get(name) for name in results.metrics)
        yield (row.index, *own, row.state.value, *metrics, row.step, row.wall_s)


def account_values(account: Goodput | None) -> Mapping[str, Any]:
    """Return an account by ACCOUNT_COLUMNS: seconds, shares of 1, counts; empty without one."""
    if account is None:
        return {}
    spans = {f"{name}_s": getattr(account.parts, name).total_seconds() for name in _PARTS}
    return {
        "goodput": account.goodput,
        "ettr": account.ettr,
        "ettr_expected": account.ettr_expected,
        "wall_s": account.parts.wall.total_seconds(),
        **spans,
        "attempts": account.attempts,
        "rounds": account.rounds,
        "failures": sum(account.failures.values()),
        "planned": sum(account.planned.values()),
        "lost_steps": account.lost_steps,
        "saves": account.saves,
        "saved_bytes": account.saved_bytes,
    }
