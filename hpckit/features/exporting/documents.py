"""The kinds of export that are one text: CSV, JSON lines and OpenMetrics; traces stand beside."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from types import ModuleType
from typing import Any

from hpckit.errors import import_optional
from hpckit.features.exporting.exported_run import ExportedRun, Written
from hpckit.features.exporting.trace import build_chrome_trace
from hpckit.model.goodput import Goodput
from hpckit.model.ids import split_run_id
from hpckit.model.metrics import MetricValue, metric_value_to_number
from hpckit.model.states import RunState
from hpckit.operations.output_file import EXPORT_MARKS, VALUE_COLUMNS, OutputKind
from hpckit.record.metrics.history import last_numbers_not_undone
from hpckit.report.escape import escape_json, escape_name, escape_table_cell, guard_csv_cell_against_formulas
from hpckit.report.rows import RunRow, build_run_row
from hpckit.values import field_names
from hpckit.views.accounts import compute_goodput_by_run


class ExportKind(StrEnum):
    """The forms that an export can have."""

    csv = "csv"
    jsonl = "jsonl"
    openmetrics = "openmetrics"
    trace = "trace"
    tensorboard = "tensorboard"
    wandb = "wandb"
    mlflow = "mlflow"

    @property
    def is_tracker(self) -> bool:
        """Whether the target is a folder that a tracker's own library writes."""
        return self in _TRACKERS


_TRACKERS = {
    ExportKind.tensorboard: "tensorboard_files",
    ExportKind.wandb: "wandb_folders",
    ExportKind.mlflow: "mlflow_store",
}


def import_tracker_module(kind: ExportKind) -> ModuleType:
    """Import the module that writes a tracker's files; raises UsageError without its library.

    Only when it is asked for: trackers are slow to import, and optional.
    """
    return import_optional(
        f"hpckit.features.exporting.{_TRACKERS[kind]}",
        f"an export to {kind}",
        f"pip install '.[{kind}]' in hpckit's checkout; csv and jsonl need nothing",
    )


class ExportDocument:
    """The text of an export, piece by piece; `written` is complete once all was taken."""

    def __init__(self, kind: ExportKind, runs: Sequence[ExportedRun], now: datetime, *, undone: bool) -> None:
        self.written = Written()
        self._kind, self._runs, self._now, self._undone = kind, runs, now, undone

    def __iter__(self) -> Iterator[str]:
        match self._kind:
            case ExportKind.openmetrics:
                yield from format_open_metrics(
                    list(map(self._collect_last_values_of_run, self._runs, self._yield_run_goodputs()))
                )
            case ExportKind.trace:
                yield build_chrome_trace(self._runs, self._now)
            case _:
                lines = format_csv_lines if self._kind is ExportKind.csv else format_json_lines
                yield from lines((run.id, self._yield_values_and_count_them(run)) for run in self._runs)

    def _yield_values_and_count_them(self, run: ExportedRun) -> Iterator[MetricValue]:
        count = 0
        for value in run.read_values(undone=self._undone):
            count += 1
            yield value
        self.written += Written(values=count)

    def _yield_run_goodputs(self) -> Iterator[Goodput]:
        """Yield the account of each run, in order; what its launch records is read once."""
        for _, group in groupby(self._runs, key=lambda run: run.launch.folder):
            runs = list(group)
            known = compute_goodput_by_run(runs[0].launch, [run.view for run in runs], self._now)
            yield from (known[run.view.record.index] for run in runs)

    def _collect_last_values_of_run(self, run: ExportedRun, account: Goodput) -> RunGauges:
        found = last_numbers_not_undone(run.read_metric_history())
        self.written += Written(values=len(found))
        return run, build_run_row(run.view, account), found


def describe_marks_of_earlier_export(kind: ExportKind) -> OutputKind:
    """Return what an earlier document of this kind is known by."""
    return OutputKind(noun=f"export to {kind}", marks=(EXPORT_MARKS[kind],))


RunValues = tuple[str, Iterable[MetricValue]]
"""The id of a run, and its values."""


def format_csv_lines(runs: Iterable[RunValues]) -> Iterator[str]:
    """Yield a header and a line per value; numbers in full, null as an empty field.

    No text is one that a spreadsheet computes, and keys that differ stay different.
    """
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    writer.writerow(VALUE_COLUMNS)
    for run, values in runs:
        launch = split_run_id(run)[0]
        for value in values:
            writer.writerow(_build_csv_cells(launch, run, value))
            yield _drain_buffer(line)
    yield _drain_buffer(line)


def _drain_buffer(line: io.StringIO) -> str:
    text = line.getvalue()
    line.seek(0)
    line.truncate()
    return text


def _build_csv_cells(launch: str, run: str, one: MetricValue) -> tuple[Any, ...]:
    attempt, round_number = one.row.place
    undone = "true" if one.undone else "false"
    names = (
        guard_csv_cell_against_formulas(escape_table_cell(launch)),
        guard_csv_cell_against_formulas(escape_table_cell(run)),
    )
    place = (
        attempt,
        round_number,
        one.row.step,
        guard_csv_cell_against_formulas(escape_table_cell(one.row.at)),
    )
    return (
        *names,
        *place,
        guard_csv_cell_against_formulas(escape_name(one.key)),
        _format_csv_value(one.value),
        undone,
    )


def _format_csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) or value is None:
        return value
    return guard_csv_cell_against_formulas(escape_table_cell(_non_number_to_text(value)))


def _non_number_to_text(value: Any) -> str:
    """Return a text as it is, and what `run.log` never writes, such as a list, as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def format_json_lines(runs: Iterable[RunValues]) -> Iterator[str]:
    """Yield a JSON object per value; NaN and infinite numbers are null, named by `not_finite`."""
    for run, values in runs:
        launch = split_run_id(run)[0]
        for value in values:
            text = json.dumps(_value_to_json(launch, run, value), ensure_ascii=False, allow_nan=False)
            yield escape_json(text) + "\n"


def _value_to_json(launch: str, run: str, one: MetricValue) -> dict[str, Any]:
    attempt, round_number = one.row.place
    number = metric_value_to_number(one.value)
    odd = number is not None and not math.isfinite(number)
    own = (launch, run, attempt, round_number, one.row.step, one.row.at, one.key)
    plain = one.value is None or isinstance(one.value, bool | int | float)
    value = None if odd else one.value if plain else _non_number_to_text(one.value)
    found = dict(zip(VALUE_COLUMNS, (*own, value, one.undone), strict=True))
    return found | ({"not_finite": str(float(number or 0))} if odd else {})


Labels = dict[str, str]
Sample = tuple[Labels, float]


RunGauges = tuple[ExportedRun, RunRow, Mapping[str, float]]
"""A run, its row with its goodput, and the last value of each metric that was not undone."""


def format_open_metrics(runs: Sequence[RunGauges]) -> Iterator[str]:
    """Yield the whole exposition, for Prometheus and others; it ends with `# EOF`.

    Labels are the launch and the run, never overrides: each value of a label is a series of its
    own. All families are gauges or counters, which the textfile collector's older format has, too.
    """
    rows = [({"launch": run.launch.id, "run": run.id}, row, metrics) for run, row, metrics in runs]
    infos = (
        (labels | {"name": run.launch.name, "stage": row.stage or "", "jobid": row.job or ""}, 1)
        for (run, *_), (labels, row, _) in zip(runs, rows, strict=True)
    )
    yield from _format_metric_family("hpckit_run_info", "gauge", "What the run is.", infos)
    yield from _format_metric_family(
        "hpckit_run_state",
        "gauge",
        "1 for the state that the run is in, 0 for all others.",
        (
            (labels | {"state": state.value}, int(row.state is state))
            for labels, row, _ in rows
            for state in RunState
        ),
    )
    yield from _format_metric_family(
        "hpckit_run_step",
        "gauge",
        "The latest step, from 0.",
        ((labels, row.step) for labels, row, _ in rows if row.step is not None),
    )
    yield from _format_metric_family(
        "hpckit_run_metric",
        "gauge",
        "The last logged value that no restart has undone.",
        ((labels | {"key": key}, number) for labels, _, metrics in rows for key, number in metrics.items()),
    )
    yield from _format_goodput_families(
        [(labels, row.goodput) for labels, row, _ in rows if row.goodput is not None]
    )
    yield "# EOF\n"


def _format_goodput_families(known: Sequence[tuple[Labels, Goodput]]) -> Iterator[str]:
    yield from _format_metric_family(
        "hpckit_run_goodput_ratio",
        "gauge",
        "The productive share of the time on the nodes.",
        ((labels, found.goodput) for labels, found in known if found.goodput is not None),
    )
    yield from _format_metric_family(
        "hpckit_run_time_seconds",
        "gauge",
        "The wall time of the run by what it was spent on. A part may shrink: a restart makes "
        "productive time lost time.",
        (
            (labels | {"part": part}, getattr(found.parts, part).total_seconds())
            for labels, found in known
            for part in field_names(found.parts)
        ),
    )
    yield from _format_metric_family(
        "hpckit_run_attempts",
        "counter",
        "How many attempts have begun.",
        ((labels, found.attempts) for labels, found in known),
    )
    yield from _format_metric_family(
        "hpckit_run_failures",
        "counter",
        "How many rounds and attempts failed, by cause.",
        (
            (labels | {"cause": cause.value}, count)
            for labels, found in known
            for cause, count in found.failures.items()
        ),
    )
    yield from _format_metric_family(
        "hpckit_run_saved_bytes",
        "counter",
        "The size of all checkpoints that were committed.",
        ((labels, found.saved_bytes) for labels, found in known),
    )


def _format_metric_family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}\n# HELP {name} {about}\n"
    suffix = "_total" if kind == "counter" else ""
    for labels, number in samples:
        told = ",".join(f'{label}="{_escape_label(text)}"' for label, text in labels.items())
        yield f"{name}{suffix}{{{told}}} {_format_open_metrics_number(number)}\n"


def _escape_label(text: str) -> str:
    return escape_name(text).replace("\\", "\\\\").replace('"', '\\"')


def _format_open_metrics_number(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return repr(number)
