"""The table of a sweep: the overrides that differ between runs, next to the results. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from hpckit.model.counted import format_step_of_total
from hpckit.model.goodput import Goodput, TimeParts
from hpckit.model.ids import split_run_id
from hpckit.model.metrics import DROPPED_ROWS, DROPPING_ROWS
from hpckit.model.moment import format_slurm_duration
from hpckit.model.plain import attributes_to_json
from hpckit.model.states import RunState
from hpckit.report.rows import RunRow
from hpckit.report.selection import SortKey, parse_overrides, resolve_sort_column, sort_with_missing_last
from hpckit.values import dataclass, field_names, replace

_PARTS = field_names(TimeParts)
ACCOUNT_COLUMNS = (
    *("goodput", "ettr", "ettr_expected", "wall_s", *(f"{name}_s" for name in _PARTS)),
    *("attempts", "rounds", "failures", "planned", "lost_steps", "saves", "saved_bytes"),
    "writing_share",
)
"""What --csv adds for the goodput of a run; `wall_s` is the sum of its parts."""

_OWN = frozenset(
    {"launch", "index", "stage", "state", "attempt", "cause", "step", "steps", "time"}
    | {"runs", "completed", *ACCOUNT_COLUMNS}
)
"""The names that columns of hpckit's own have in some form of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One run: its differing overrides, its last value of each metric, and its goodput.

    `wall_s` is how long its latest attempt has run. `reason` says why it completed early, otherwise
    it is empty. `blocked` says why it never began, if an earlier stage did not complete. `cause` is
    the cause of its failure.
    """

    run: str
    index: int
    overrides: Mapping[str, Any]
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
    warnings: tuple[str, ...] = ()

    def describe_stale_metrics(self) -> str:
        """Return what the run last warned of rows of metrics that it could not write; empty if it did not."""
        stale = (text for text in reversed(self.warnings) if DROPPED_ROWS in text or DROPPING_ROWS in text)
        return next(stale, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultColumns:
    """The overrides and metrics that are columns.

    `prefixed` are the columns that say which they are, as their plain name is that of another one.
    """

    overrides: tuple[str, ...]
    metrics: tuple[str, ...]
    prefixed: frozenset[str] = frozenset()

    def column_names(self, kind: str) -> tuple[str, ...]:
        """Return the names of the columns of all `overrides`, or of all `metrics`."""
        names = [(name, f"{kind}.{name}") for name in getattr(self, kind)]
        return tuple(long if long in self.prefixed else name for name, long in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results(ResultColumns):
    """All rows, with the names of the columns that depend on the sweep.

    `spans` is whether the rows are of several launches, so that each row must name its launch.
    `kept` are columns that were swept, although all runs have the same value of them.
    """

    rows: tuple[ResultRow, ...]
    spans: bool = False
    kept: frozenset[str] = frozenset()


def build_results(
    rows: Sequence[RunRow],
    now: datetime,
    *,
    sweep: Mapping[str, Mapping[str, str]] | None = None,
    swept: Iterable[str] = (),
    spans: bool = False,
) -> Results:
    """Return the results of runs; `now` ends the wall time of those still running.

    `sweep` are the overrides of all runs by id, if `rows` are only some of them or have others; it
    decides which overrides differ. `swept` are columns, whether they differ or not.
    """
    given = {row.run: parse_overrides(row.overrides) for row in rows} if sweep is None else sweep
    differing = find_override_keys_that_differ(list(given.values()))
    shown = {*differing, *swept}
    names = tuple(key for key in count_runs_by_key(given.values()) if key in shown)
    metrics = tuple(dict.fromkeys(name for row in rows for name in row.metrics))
    return Results(
        overrides=names,
        metrics=metrics,
        prefixed=_find_ambiguous_columns(names, metrics),
        rows=tuple(_build_result_row(row, names, given[row.run], now) for row in rows),
        spans=spans,
        kept=frozenset(shown.difference(differing)),
    )


def _find_ambiguous_columns(overrides: Sequence[str], metrics: Sequence[str]) -> frozenset[str]:
    """Return the columns whose plain name another one has; over keys, a metric has three names."""
    taken = _OWN.union(overrides)
    ends = ("", "_mean", "_std", "_n")
    found = {name for name in metrics if any(f"{name}{end}" in taken for end in ends)}
    found |= {name for name in metrics if name.removeprefix("metrics.") in found}
    own = (f"overrides.{name}" for name in overrides if name in _OWN)
    return frozenset((*own, *(f"metrics.{name}" for name in found)))


def _build_result_row(
    row: RunRow, names: Sequence[str], given: Mapping[str, str], now: datetime
) -> ResultRow:
    elapsed = row.elapsed(now)
    return ResultRow(
        run=row.run,
        index=row.index,
        overrides={name: given[name] for name in names if name in given},
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
        warnings=row.warnings,
    )


_ABOUT = frozenset({"name", "output_dir", "tracker", "notify", "observe", "preflight", "budget"})
"""Sections that say how a launch is named, watched and reported."""


def count_runs_by_key(sweep: Iterable[Mapping[str, str]]) -> Mapping[str, int]:
    """Return by how many runs each key is set, in order of appearance.

    Several launches may also differ in their notifications and measurements: no result depends on that.
    """
    counts = Counter(chain.from_iterable(sweep))
    return {key: counts[key] for key in counts if key.partition(".")[0] not in _ABOUT}


def find_override_keys_that_differ(sweep: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the keys that not all runs set to the same value, in order of appearance."""
    return tuple(key for key in count_runs_by_key(sweep) if len({given.get(key) for given in sweep}) > 1)


def sort_results(results: Results, key: SortKey) -> Results:
    """Return the results sorted by a column; runs without a value come last, in either order.

    By a metric, what completed comes first, then what may go on: a run that failed early may have a
    better value than those that did all their steps. Raises UsageError with the known columns if
    the column is unknown.
    """
    more = ("launch", "attempt") if results.spans else ()
    varying = (*results.column_names("overrides"), *results.column_names("metrics"), *more)
    columns = ("index", "state", "cause", "step", "time", *varying, *ACCOUNT_COLUMNS)
    column = resolve_sort_column(key, columns, "results").column
    lines = zip(results.rows, _list_row_values_by_column(results), strict=True)

    def value(line: tuple[ResultRow, Mapping[str, Any]]) -> Any:
        row, own = line
        return own[column] if column in own else list_goodput_values(row.goodput).get(column)

    found = sort_with_missing_last(lines, value, descending=key.descending)
    if column in results.column_names("metrics"):
        found.sort(key=lambda line: line[0].state.is_final)
        found.sort(key=lambda line: (value(line) is None, line[0].state is not RunState.completed))
    return replace(results, rows=tuple(row for row, _ in found))


def list_column_names(results: Results) -> tuple[str, ...]:
    """Return the names of all columns, in the order they are shown."""
    first = ("launch", "index") if results.spans else ("index",)
    stage = ("stage",) if any(row.stage is not None for row in results.rows) else ()
    state = ("state", "attempt") if results.spans else ("state",)
    cause = ("cause",) if any(row.cause is not None for row in results.rows) else ()
    overrides, metrics = results.column_names("overrides"), results.column_names("metrics")
    return (*first, *stage, *overrides, *state, *cause, *metrics, "step", "time")


def list_row_values(results: Results) -> Iterable[tuple[Any, ...]]:
    """Yield the values of each row under `header`."""
    names = list_column_names(results)
    return (tuple(own[name] for name in names) for own in _list_row_values_by_column(results))


def _list_row_values_by_column(results: Results) -> Iterator[Mapping[str, Any]]:
    own = ("launch", "index", "stage", "state", "attempt", "cause", "step")
    overrides = dict(zip(results.column_names("overrides"), results.overrides, strict=True))
    metrics = dict(zip(results.column_names("metrics"), results.metrics, strict=True))
    for row in results.rows:
        values = {"time": row.wall_s, **{name: getattr(row, name) for name in own}}
        values |= {name: row.overrides.get(key) for name, key in overrides.items()}
        yield values | {name: row.metrics.get(key) for name, key in metrics.items()}


def list_shown_column_names(results: Results) -> tuple[str, ...]:
    """Return the names of all columns for people: steps are how many there were."""
    return (*list_column_names(results)[:-2], "steps", "time")


def list_shown_row_values(results: Results) -> Iterable[tuple[Any, ...]]:
    """Yield the values of each row under `list_shown_column_names`, steps and time as text."""
    for line, row in zip(list_row_values(results), results.rows, strict=True):
        span = None if row.wall_s is None else timedelta(seconds=row.wall_s)
        yield (*line[:-2], format_step_of_total(row.step), format_slurm_duration(span))


def list_goodput_values(account: Goodput | None) -> Mapping[str, Any]:
    """Return numbers of the goodput, those of ACCOUNT_COLUMNS among them; none without a goodput.

    They are seconds, shares of 1, and counts.
    """
    if account is None:
        return {}
    return {
        **attributes_to_json(account, "goodput ettr ettr_since_first_step ettr_expected"),
        **attributes_to_json(account.parts, "wall_s=wall", *(f"{name}_s={name}" for name in _PARTS)),
        **attributes_to_json(account, "attempts rounds"),
        "failures": sum(account.failures.values()),
        "planned": sum(account.planned.values()),
        **attributes_to_json(account, "lost_steps saves saved_bytes writing_s=writing writing_share"),
    }
