"""What programs and notebooks see: tables, small curves, and the line that shows how a wait goes."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hpckit.errors import import_optional
from hpckit.model.states import RunState
from hpckit.report.text import format_number, format_state_counts
from hpckit.values import dataclass

Row = TypeVar("Row")
_SHOWN = 60
_STYLE = "text-align:left;padding:2px 8px"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[Row]):
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

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dictionary for each row, by column."""
        return [dict(zip(self.columns, record, strict=True)) for record in self._plain]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; raises UsageError if pandas is not installed."""
        pandas: Any = import_optional("pandas", "to_pandas()", "pip install pandas")
        return pandas.DataFrame.from_records(self._plain, columns=list(self.columns))

    def to_polars(self) -> Any:
        """Return a polars DataFrame; raises UsageError if polars is not installed."""
        polars: Any = import_optional("polars", "to_polars()", "pip install polars")
        values = zip(*self._plain, strict=True) if self.records else [()] * len(self.columns)
        return polars.DataFrame(dict(zip(self.columns, map(list, values), strict=True)), strict=False)

    @property
    def _plain(self) -> list[tuple[Any, ...]]:
        """The records without enumerations, which each library would show in another way."""
        return [
            tuple(str(one) if isinstance(one, Enum) else one for one in record) for record in self.records
        ]

    def __repr__(self) -> str:
        lines = [self.columns, *(tuple(map(format_number, record)) for record in self.records[:_SHOWN])]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.columns))]
        text = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join([*text, *self._more])

    def _repr_html_(self) -> str:
        return format_html_table(self.columns, self.records[:_SHOWN]) + "".join(self._more)

    @property
    def _more(self) -> Sequence[str]:
        left = len(self.records) - _SHOWN
        return [f"… {left} more"] if left > 0 else []


def format_html_table(columns: Sequence[str], records: Sequence[Sequence[Any]]) -> str:
    """Return a table as HTML, without style sheets or scripts; a value with `_repr_html_` is HTML."""
    head = "".join(f'<th style="{_STYLE}">{html.escape(name)}</th>' for name in columns)
    lines = ("".join(f'<td style="{_STYLE}">{_format_cell(value)}</td>' for value in one) for one in records)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _format_cell(value: Any) -> str:
    own = getattr(value, "_repr_html_", None)
    return html.escape(format_number(value)) if own is None else str(own())


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A small curve of numbers, oldest first, as an SVG in a cell."""

    values: tuple[float, ...]

    def _repr_html_(self) -> str:
        low, high = min(self.values), max(self.values)
        step, span = 118 / max(len(self.values) - 1, 1), (high - low) or 1.0
        points = " ".join(
            f"{1 + place * step:.1f},{19 - 18 * (value - low) / span:.1f}"
            for place, value in enumerate(self.values)
        )
        line = f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="1.5"/>'
        return f'<svg width="120" height="20" role="img" aria-label="curve">{line}</svg>'


@contextmanager
def show_wait_progress(
    what: str, total: int, *, wanted: bool | None
) -> Iterator[Callable[[Mapping[RunState, int]], None]]:
    """Give a callback for the runs by state; it draws for a person, in a terminal or a notebook."""
    console = Console(stderr=True, highlight=False)
    if wanted is False or not (console.is_terminal or console.is_jupyter or wanted):
        yield lambda _counts: None
    elif console.is_jupyter:
        yield _show_line_in_notebook(what)
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[states]}"))
        with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
            task = bar.add_task(what, total=total, states="")

            def show(counts: Mapping[RunState, int]) -> None:
                over = sum(count for state, count in counts.items() if state.ended)
                bar.update(task, completed=over, states=format_state_counts(counts))

            yield show


def _show_line_in_notebook(what: str) -> Callable[[Mapping[RunState, int]], None]:
    """Return what replaces a line below the cell; it needs no widgets."""
    display = import_module("IPython.display").display
    lines = [f"{what}: waiting"]
    handle = display({"text/plain": lines[0]}, raw=True, display_id=True)

    def show(counts: Mapping[RunState, int]) -> None:
        line = f"{what}: {format_state_counts(counts)}"
        if line != lines[-1]:
            lines[:] = [line]
            handle.update({"text/plain": line}, raw=True)

    return show
