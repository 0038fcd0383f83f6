"""Logged values as lines of CSV and of JSON, one value each. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from hpckit.model.ids import split_run_id
from hpckit.model.metrics.rows import MetricValue, number_of
from hpckit.operations.output_file import VALUE_COLUMNS
from hpckit.report.escape import escaped_cell, escaped_json, escaped_name, guarded

RunValues = tuple[str, Iterable[MetricValue]]
"""The id of a run, and its values."""


def csv_lines(runs: Iterable[RunValues]) -> Iterator[str]:
    """Yield a header and a line per value; numbers in full, null as an empty field.

    No text is one that a spreadsheet computes, and keys that differ stay different.
    """
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    writer.writerow(VALUE_COLUMNS)
    for run, values in runs:
        launch = split_run_id(run)[0]
        for one in values:
            writer.writerow(_cells(launch, run, one))
            yield _taken(line)
    yield _taken(line)


def _taken(line: io.StringIO) -> str:
    text = line.getvalue()
    line.seek(0)
    line.truncate()
    return text


def _cells(launch: str, run: str, one: MetricValue) -> tuple[Any, ...]:
    attempt, round_number = one.place
    undone = "true" if one.undone else "false"
    names = (guarded(escaped_cell(launch)), guarded(escaped_cell(run)))
    place = (attempt, round_number, one.step, guarded(escaped_cell(one.at)))
    return (*names, *place, guarded(escaped_name(one.key)), _cell(one.value), undone)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) or value is None:
        return value
    return guarded(escaped_cell(_text(value)))


def _text(value: Any) -> str:
    """Return a text as it is, and what `run.log` never writes, such as a list, as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def json_lines(runs: Iterable[RunValues]) -> Iterator[str]:
    """Yield a JSON object per value; NaN and infinite numbers are null, named by `not_finite`."""
    for run, values in runs:
        launch = split_run_id(run)[0]
        for one in values:
            text = json.dumps(_object(launch, run, one), ensure_ascii=False, allow_nan=False)
            yield escaped_json(text) + "\n"


def _object(launch: str, run: str, one: MetricValue) -> dict[str, Any]:
    attempt, round_number = one.place
    number = number_of(one.value)
    odd = number is not None and not math.isfinite(number)
    own = (launch, run, attempt, round_number, one.step, one.at, one.key)
    plain = one.value is None or isinstance(one.value, bool | int | float)
    value = None if odd else one.value if plain else _text(one.value)
    found = dict(zip(VALUE_COLUMNS, (*own, value, one.undone), strict=True))
    return found | ({"not_finite": str(float(number or 0))} if odd else {})
