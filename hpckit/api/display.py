"""What programs and notebooks see: tables, logged values, small curves, and how a wait goes."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hpckit.errors import import_optional
from hpckit.model.ids import build_run_id
from hpckit.model.metrics import metric_value_to_number
from hpckit.model.states import RunState
from hpckit.record.launches import check_launch_exists
from hpckit.record.layout import LaunchPaths
from hpckit.record.metrics.history import read_metric_history
from hpckit.report.text import TextTable, format_number, format_state_counts, render_plain_text
from hpckit.values import dataclass

Row = TypeVar("Row")
_SHOWN, _POINTS = 60, 118
_STYLE = "text-align:left;padding:2px 8px"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Sequence[Row]):
    """Rows of one kind, in order: a sequence of them, and a table of `columns`.

    `records` has the values of each row by column. A notebook shows the first 60 rows.

    Example:
        table = hpckit.open("digits").results()
        best = max(table.rows, key=lambda row: row.metrics["test_accuracy"])
        frame = table.to_pandas()

    """

    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    records: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dictionary for each row, by column."""
        # Each library would show enumerations in another way.
        plain = ((str(one) if isinstance(one, Enum) else one for one in record) for record in self.records)
        return [dict(zip(self.columns, record, strict=True)) for record in plain]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; raises UsageError if pandas is not installed."""
        pandas: Any = import_optional("pandas", "to_pandas()", "pip install pandas")
        return pandas.DataFrame(self.to_dicts(), columns=list(self.columns))

    def to_polars(self) -> Any:
        """Return a polars DataFrame; raises UsageError if polars is not installed."""
        polars: Any = import_optional("polars", "to_polars()", "pip install polars")
        rows = self.to_dicts()
        return polars.DataFrame({name: [row[name] for row in rows] for name in self.columns}, strict=False)

    def __repr__(self) -> str:
        rows = tuple(tuple(map(format_number, record)) for record in self.records[:_SHOWN])
        table, left = TextTable(header=self.columns, rows=rows), len(self) - _SHOWN
        return render_plain_text([table, f"… {left} more"] if left > 0 else [table])

    def _repr_html_(self) -> str:
        return format_html_table(self.columns, self.records[:_SHOWN], left=len(self) - _SHOWN)


def format_html_table(
    columns: Sequence[str], records: Sequence[Sequence[Any]], *, curves: Sequence[str] = (), left: int = 0
) -> str:
    """Return a table as HTML, without style sheets or scripts.

    `curves` are the cells of a last column, as HTML. `left` is how many rows are not shown.
    """
    head = "".join(f'<th style="{_STYLE}">{html.escape(name)}</th>' for name in columns)
    body = ""
    for number, record in enumerate(records):
        cells = [*(html.escape(format_number(one)) for one in record), *curves[number : number + 1]]
        line = "".join(f'<td style="{_STYLE}">{cell}</td>' for cell in cells)
        body += f"<tr>{line}</tr>"
    more = f"<p>… {left} more</p>" if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


class MetricPoint(NamedTuple):
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
    run = build_run_id(folder.name, index)
    for judged in read_metric_history(LaunchPaths(folder).run(index)):
        row = judged.row
        at: datetime | None = None
        with suppress(ValueError):  # a program may write anything; without a zone it is UTC
            at = datetime.fromisoformat(row.at)
            at = at.replace(tzinfo=at.tzinfo or UTC)
        for key, value in row.values.items():
            if not metrics or key in metrics:
                yield MetricPoint(run, *row.place, row.step, at, key, value, key in judged.undone)


def draw_metric_curve(folder: Path, index: int, metric: str) -> str:
    """Return what restarts have not undone of a metric of a run as an SVG; empty without any number."""
    logged = (point for point in read_metric_points(folder, index, [metric]) if not point.undone)
    numbers = [metric_value_to_number(point.value) for point in logged]
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    if not finite:
        return ""
    finite = finite[:: max(len(finite) // _POINTS, 1)]
    low, high = min(finite), max(finite)
    step, span = _POINTS / max(len(finite) - 1, 1), (high - low) or 1.0
    points = (f"{1 + at * step:.1f},{19 - 18 * (one - low) / span:.1f}" for at, one in enumerate(finite))
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="#0072b2" stroke-width="1.5"/>'
    return f'<svg width="120" height="20" role="img" aria-label="curve">{line}</svg>'


@contextmanager
def show_wait_progress(
    what: str, total: int, *, wanted: bool | None
) -> Iterator[Callable[[Mapping[RunState, int]], None]]:
    """Give a callback for the runs by state; it draws for a person, in a terminal or a notebook."""
    console = Console(stderr=True, highlight=False)
    if wanted is False or not (console.is_terminal or console.is_jupyter or wanted):
        yield lambda _counts: None
    elif console.is_jupyter:  # a line below the cell; it needs no widgets
        display = import_module("IPython.display").display
        shown = display({"text/plain": f"{what}: waiting"}, raw=True, display_id=True)
        update = lru_cache(maxsize=1)(lambda line: shown.update({"text/plain": line}, raw=True))  # if changed
        yield lambda counts: update(f"{what}: {format_state_counts(counts)}")
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[states]}"))
        with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
            task = bar.add_task(what, total=total, states="")

            def show(counts: Mapping[RunState, int]) -> None:
                over = sum(count for state, count in counts.items() if state.ended)
                bar.update(task, completed=over, states=format_state_counts(counts))

            yield show
