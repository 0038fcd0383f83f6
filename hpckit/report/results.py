"""The table of a sweep: the overrides that differ between runs, next to the results. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from hpckit.model.counted import steps_text
from hpckit.model.goodput import Goodput, TimeParts
from hpckit.model.ids import split_run_id
from hpckit.model.moment import duration
from hpckit.model.plain import plain_fields
from hpckit.model.states import RunState
from hpckit.report.rows import RunRow
from hpckit.report.selection import SortKey, assigned, find_column, ordered
from hpckit.values import dataclass, field_names, replace

_PARTS = field_names(TimeParts)
ACCOUNT_COLUMNS = (
    *("goodput", "ettr", "ettr_expected", "wall_s", *(f"{name}_s" for name in _PARTS)),
    *("attempts", "rounds", "failures", "planned", "lost_steps", "saves", "saved_bytes"),
    "writing_share",
)
"""What --csv adds for the goodput of a run; `wall_s` is the sum of its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One run: its differing overrides, its last value of each metric, and its goodput.

    `wall_s` is how long its latest attempt has run. `reason` says why it completed early, otherwise
    it is empty. `blocked` says why it never began, if an earlier stage did not complete. `cause` is
    the cause of its failure.
    """

    run: str
    index: int
    overrides: Mapping[str, str]
    state: RunState
    step: int | None
    wall_s: float | None
    metrics: Mapping[str, Any]
    goodput: Goodput | None = None
    launch: str = ""
    attempt: int = 0
    stage: str | None = None
    blocked: str | None = None
    reason: str = ""
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All rows, with the names of the columns that depend on the sweep.

    `spans` is whether the rows are of several launches, so that each row must name its launch.
    """

    overrides: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[ResultRow, ...]
    spans: bool = False


def make_results(
    rows: Sequence[RunRow],
    now: datetime,
    *,
    sweep: Iterable[Iterable[str]] | None = None,
    spans: bool = False,
) -> Results:
    """Return the results of runs; `now` ends the wall time of those still running.

    `sweep` are the overrides of all runs if `rows` are only some of them; it decides which
    overrides differ.
    """
    given = [assigned(row.overrides) for row in rows]
    names = _differing(given if sweep is None else [assigned(one) for one in sweep])
    return Results(
        overrides=names,
        metrics=tuple(dict.fromkeys(name for row in rows for name in row.metrics)),
        rows=tuple(
            _result_row(row, {name: one[name] for name in names if name in one}, now)
            for row, one in zip(rows, given, strict=True)
        ),
        spans=spans,
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
        launch=split_run_id(row.run)[0],
        attempt=row.attempt,
        reason=row.early,
        stage=row.stage,
        blocked=row.blocked or None,
        cause=None if row.failure is None else row.failure.cause.value,
    )


_ABOUT = frozenset({"name", "output_dir", "tracker", "notify", "observe", "preflight", "budget"})
"""Sections that say how a launch is named, watched and reported."""


def _differing(sweep: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the keys that not all runs set to the same value, in order of appearance.

    Several launches may also differ in who is told of them, and in what is measured: no result
    depends on that.
    """
    keys = dict.fromkeys(key for given in sweep for key in given)
    counted = (key for key in keys if key.lstrip("+~").partition(".")[0] not in _ABOUT)
    return tuple(key for key in counted if len({given.get(key) for given in sweep}) > 1)


def sort_results(results: Results, key: SortKey) -> Results:
    """Return the results sorted by a column; runs without a value come last, in either order.

    Raises UsageError with the known columns if the column is unknown.
    """
    own = ("index", "state", "cause", "step", "time", *results.overrides, *results.metrics)
    own += ("launch", "attempt") if results.spans else ()
    key = find_column(key, (*own, *ACCOUNT_COLUMNS), "results")
    rows = ordered(results.rows, lambda row: value(row, key.column), descending=key.descending)
    return replace(results, rows=tuple(rows))


def value(row: ResultRow, column: str) -> Any:
    """Return the value of a row in a column, or None; hpckit's own columns take precedence."""
    own = {
        "launch": row.launch,
        "index": row.index,
        "state": row.state,
        "attempt": row.attempt,
        "cause": row.cause,
        "step": row.step,
        "time": row.wall_s,
    }
    for known in (own, row.overrides, row.metrics):
        if column in known:
            return known[column]
    return account_values(row.goodput).get(column)


def header(results: Results) -> tuple[str, ...]:
    """Return the names of all columns, in the order they are shown."""
    first = ("launch", "index") if results.spans else ("index",)
    stage = ("stage",) if _has_stages(results) else ()
    state = ("state", "attempt") if results.spans else ("state",)
    cause = ("cause",) if _has_causes(results) else ()
    return (*first, *stage, *results.overrides, *state, *cause, *results.metrics, "step", "time")


def cells(results: Results) -> Iterable[tuple[Any, ...]]:
    """Yield the values of each row under `header`."""
    staged, failed = _has_stages(results), _has_causes(results)
    for row in results.rows:
        stage = (row.stage,) if staged else ()
        own = (row.overrides.get(name) for name in results.overrides)
        metrics = (row.metrics.get(name) for name in results.metrics)
        first = (row.launch, row.index) if results.spans else (row.index,)
        state = (row.state.value, row.attempt) if results.spans else (row.state.value,)
        cause = (row.cause,) if failed else ()
        yield (*first, *stage, *own, *state, *cause, *metrics, row.step, row.wall_s)


def shown_header(results: Results) -> tuple[str, ...]:
    """Return the names of all columns for people: steps are how many there were."""
    return (*header(results)[:-2], "steps", "time")


def shown_cells(results: Results) -> Iterable[tuple[Any, ...]]:
    """Yield the values of each row under `shown_header`, steps and time as text."""
    for line, row in zip(cells(results), results.rows, strict=True):
        span = None if row.wall_s is None else timedelta(seconds=row.wall_s)
        yield (*line[:-2], steps_text(row.step), duration(span))


def _has_causes(results: Results) -> bool:
    return any(row.cause is not None for row in results.rows)


def _has_stages(results: Results) -> bool:
    return any(row.stage is not None for row in results.rows)


def account_values(account: Goodput | None) -> Mapping[str, Any]:
    """Return numbers of the goodput, those of ACCOUNT_COLUMNS among them; none without a goodput.

    They are seconds, shares of 1, and counts.
    """
    if account is None:
        return {}
    return {
        **plain_fields(account, "goodput ettr ettr_since_first_step ettr_expected"),
        **plain_fields(account.parts, "wall_s=wall", *(f"{name}_s={name}" for name in _PARTS)),
        **plain_fields(account, "attempts rounds"),
        "failures": sum(account.failures.values()),
        "planned": sum(account.planned.values()),
        **plain_fields(account, "lost_steps saves saved_bytes writing_s=writing writing_share"),
    }
