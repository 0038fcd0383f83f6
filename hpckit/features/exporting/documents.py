"""The kinds of export that are one text: CSV, JSON lines, OpenMetrics, a trace."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from types import ModuleType

from hpckit.errors import UsageError
from hpckit.features.exporting.exported_run import ExportedRun, Written
from hpckit.features.exporting.open_metrics import RunGauges, open_metrics_lines
from hpckit.features.exporting.trace import TracedRun, trace_text
from hpckit.features.exporting.value_lines import RunValues, csv_lines, json_lines
from hpckit.model.goodput import Goodput
from hpckit.model.metrics.rows import MetricValue
from hpckit.operations.output_file import EXPORT_MARKS, OutputKind
from hpckit.record.attempts import read_attempts
from hpckit.record.metrics.history import last_live_numbers
from hpckit.report.rows import run_row
from hpckit.views.accounts import accounts


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

    @property
    def marks_undone(self) -> bool:
        """Whether the form can hold values that were undone."""
        return self in {ExportKind.csv, ExportKind.jsonl}


_TRACKERS = {
    ExportKind.tensorboard: "tensorboard_files",
    ExportKind.wandb: "wandb_folders",
    ExportKind.mlflow: "mlflow_store",
}


def tracker_module(kind: ExportKind) -> ModuleType:
    """Import the module that writes a tracker's files; raises UsageError without its library.

    Only when it is asked for: trackers are slow to import, and optional.
    """
    try:
        return importlib.import_module(f"hpckit.features.exporting.{_TRACKERS[kind]}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("hpckit"):
            raise
        raise UsageError(
            f"an export to {kind} needs {error.name}, which is not installed",
            hint=f"pip install 'hpckit-slurm[{kind}]'; csv and jsonl need nothing",
        ) from error


class ExportDocument:
    """The text of an export, piece by piece; `written` is complete once all was taken."""

    def __init__(
        self, kind: ExportKind, runs: Sequence[ExportedRun], now: datetime, *, undone: bool
    ) -> None:
        self.written = Written()
        self._kind, self._runs, self._now, self._undone = kind, runs, now, undone

    def __iter__(self) -> Iterator[str]:
        match self._kind:
            case ExportKind.openmetrics:
                yield from open_metrics_lines(list(map(self._gauges, self._runs, self._accounts())))
            case ExportKind.trace:
                traced = [_traced(number, run, self._now) for number, run in enumerate(self._runs)]
                yield trace_text(traced)
            case _:
                yield from _LINES[self._kind]((run.id, self._values(run)) for run in self._runs)

    def _values(self, run: ExportedRun) -> Iterator[MetricValue]:
        count = 0
        for one in run.values(undone=self._undone):
            count += 1
            yield one
        self.written += Written(values=count)

    def _accounts(self) -> Iterator[Goodput]:
        """Yield the account of each run, in order; what its launch records is read once."""
        for _, group in groupby(self._runs, key=lambda run: run.launch.folder):
            runs = list(group)
            known = accounts(runs[0].launch, [run.view for run in runs], self._now)
            yield from (known[run.view.record.index] for run in runs)

    def _gauges(self, run: ExportedRun, account: Goodput) -> RunGauges:
        found = last_live_numbers(run.history())
        self.written += Written(values=len(found))
        return RunGauges(
            launch=run.launch.id,
            name=run.launch.name,
            row=run_row(run.view, account),
            metrics=found,
        )


def output_kind(kind: ExportKind) -> OutputKind:
    """Return what an earlier document of this kind is known by."""
    return OutputKind(noun=f"export to {kind}", marks=(EXPORT_MARKS[kind],))


_LINES: Mapping[ExportKind, Callable[[Iterable[RunValues]], Iterator[str]]] = {
    ExportKind.csv: csv_lines,
    ExportKind.jsonl: json_lines,
}


def _traced(number: int, run: ExportedRun, now: datetime) -> TracedRun:
    return TracedRun(
        id=run.id,
        number=number,
        attempts=tuple(read_attempts(run.launch.paths.run(run.view.record.index))),
        until=None if run.view.settled else now,
    )
