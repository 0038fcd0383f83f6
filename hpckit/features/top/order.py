"""The order, the filter and the columns of the table of `hpckit top`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpckit.errors import UsageError
from hpckit.features.top.frame import TopColumn, TopRow
from hpckit.model.states import RunState
from hpckit.report.escape import escape_table_cell
from hpckit.report.selection import Filter, parse_run_filter, sort_with_missing_last
from hpckit.values import dataclass

_WIDTHS = {
    TopColumn.run: 4,
    TopColumn.state: 11,
    TopColumn.cause: 13,
    TopColumn.step: 11,
    TopColumn.step_time: 7,
    TopColumn.metric: 9,
    TopColumn.goodput: 7,
    TopColumn.gpu: 5,
    TopColumn.power: 6,
}
_LEAST_OVERRIDES, _MOST_OVERRIDES = 10, 40
_IN_ORDER = (
    *(TopColumn.run, TopColumn.state, TopColumn.step, TopColumn.cause, TopColumn.metric),
    TopColumn.gpu,
    *(TopColumn.step_time, TopColumn.power, TopColumn.goodput),
)
"""What a narrow terminal keeps longest, first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOrder:
    """What the table is sorted by."""

    column: TopColumn = TopColumn.run
    descending: bool = False

    @property
    def next_order(self) -> TopOrder:
        """The next order when a user asks for another one: each column, in both directions."""
        if not self.descending:
            return TopOrder(column=self.column, descending=True)
        columns = list(TopColumn)
        return TopOrder(column=columns[(columns.index(self.column) + 1) % len(columns)])

    @property
    def description(self) -> str:
        """The order in words."""
        return f"{self.column}{', largest first' if self.descending else ''}"


def filter_and_sort_rows(rows: Iterable[TopRow], words: str, order: TopOrder) -> tuple[TopRow, ...]:
    """Return the rows that match all words, in order.

    `KEY=GLOB` is as in `--override`; another word has to be part of an override or of the state.
    """
    filters = [_parse_filter_word(word) for word in words.split()]
    found = [row for row in rows if all(_matches_filter(filter_, row) for filter_ in filters)]
    states = list(RunState)

    def value(row: TopRow) -> Any:
        if order.column is TopColumn.state:
            return states.index(row.state)
        return row.values.get(order.column)

    return tuple(sort_with_missing_last(found, value, descending=order.descending))


def _parse_filter_word(word: str) -> Filter | str:
    try:
        return parse_run_filter(overrides=[word])
    except UsageError:
        return word


def _matches_filter(wanted: Filter | str, row: TopRow) -> bool:
    if isinstance(wanted, Filter):
        return wanted.matches_run(row.state, row.overrides)
    return any(wanted in text for text in (*row.overrides, row.state.value))


def find_filled_columns(rows: Iterable[TopRow]) -> frozenset[TopColumn]:
    """Return the columns in which any run has something."""
    empty = set(TopColumn)
    for row in rows:
        empty -= {name for name in empty if row.cells[name]}
        if not empty:
            break
    return frozenset(TopColumn) - empty


def choose_fitting_columns(
    width: int, filled: frozenset[TopColumn] = frozenset(TopColumn)
) -> tuple[tuple[TopColumn, int], ...]:
    """Return those of the columns that fit into this many characters, with a blank behind each."""
    left, kept = width, set[TopColumn]()
    for column in _IN_ORDER:
        if column not in filled:
            continue
        if _WIDTHS[column] + 1 <= left:
            kept.add(column)
            left -= _WIDTHS[column] + 1
        else:
            break
    widths = dict(_WIDTHS)
    if TopColumn.overrides in filled and left > _LEAST_OVERRIDES:
        kept.add(TopColumn.overrides)
        widths[TopColumn.overrides] = min(left - 1, _MOST_OVERRIDES)
    return tuple((column, widths[column]) for column in TopColumn if column in kept)


def format_heading(column: TopColumn, metric: str) -> str:
    """Return the heading of a column: that of the metric is its name."""
    return escape_table_cell(metric) if column is TopColumn.metric and metric else column.value
