"""The curve of one metric of a run, read once in full and then as it grows.

After a restart it is read again: a restart undoes steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hpckit.model.metrics.rows import number_of, recorded_step
from hpckit.model.run import RunRecord
from hpckit.record.launches import Launch
from hpckit.record.metrics import metrics_size
from hpckit.report.plot import Curve, Point
from hpckit.views.growing_file import GrowingFile
from hpckit.views.metric_history import metric_history


@dataclass(slots=True, kw_only=True)
class MetricCurve:
    """The curve of the metric and run that were asked for last."""

    launch: Launch
    _of: tuple[object, ...] = field(default=(), init=False)
    _curve: Curve = field(default_factory=Curve, init=False)
    _file: GrowingFile | None = field(default=None, init=False)

    def read(self, record: RunRecord, metric: str) -> tuple[Point, ...]:
        """Return the points of a metric: each a step and a value, in order of rows.

        Raises FrozenFolderError.
        """
        wanted = (record.index, record.attempt, record.round, metric)
        if not metric or record.attempt == 0:
            return ()
        if wanted != self._of or self._file is None:
            self._load(record, metric)
            self._of = wanted
        elif rows := self._file.new_rows():
            self._curve.add(point for row in rows for point in _point(row, row.get("step"), metric))
        return tuple(self._curve.points)

    def _load(self, record: RunRecord, metric: str) -> None:
        paths = self.launch.paths.run(record.index).attempt(record.attempt)
        size = 0
        with suppress(OSError):
            size = metrics_size(paths)
        self._curve = Curve()
        # What is added meanwhile is read twice, which changes no curve.
        self._file = GrowingFile(path=paths.metrics, begin=size)
        history = metric_history(self.launch, record.index)
        self._curve.add(
            point for judged in history for point in _point(judged.live(), judged.row.step, metric)
        )


def _point(values: Mapping[str, Any], step: object, metric: str) -> Iterator[Point]:
    value, at = number_of(values.get(metric)), recorded_step(step)
    if at is not None and value is not None:
        with suppress(OverflowError):
            yield float(at), value
