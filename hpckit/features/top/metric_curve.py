"""The curve of one metric of a run, read once in full and then as it grows.

After a restart it is read again: a restart undoes steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpckit.features.top.plot import Curve, Point
from hpckit.model.metrics import metric_value_to_number, normalize_step
from hpckit.model.run import RunRecord
from hpckit.record.launches import Launch
from hpckit.record.metrics.history import read_metric_history
from hpckit.record.metrics.log import read_metrics_file_size
from hpckit.record.store import read_rows_with_offsets
from hpckit.values import dataclass, field


@dataclass(slots=True, kw_only=True)
class MetricCurve:
    """The curve of one metric in one round of a run; `key` says of which."""

    key: tuple[object, ...]
    metric: str
    curve: Curve
    file: GrowingFile

    def read_all_points(self) -> tuple[Point, ...]:
        """Return the points so far, each a step and a value, in order of rows."""
        rows = self.file.read_new_rows()
        of = self.metric
        self.curve.add_points(point for row in rows for point in _extract_point(row, row.get("step"), of))
        return tuple(self.curve.points)


def build_curve_key(record: RunRecord, metric: str) -> tuple[object, ...]:
    """Return what a curve is of; after a restart it is another one, for a restart undoes steps."""
    return (record.index, record.attempt, record.round, metric)


def load_curve(launch: Launch, record: RunRecord, metric: str) -> MetricCurve:
    """Read a curve in full, which may take seconds. Raises FrozenFolderError."""
    paths = launch.paths.run(record.index).attempt(record.attempt)
    begun_again = record.attempt > 1 or bool(record.round)
    begin = 0
    if begun_again:
        with suppress(OSError):
            begin = read_metrics_file_size(paths)
    # What is added meanwhile is read twice, which changes no curve.
    loaded = MetricCurve(
        key=build_curve_key(record, metric),
        metric=metric,
        curve=Curve(),
        file=GrowingFile(path=paths.metrics, begin=begin),
    )
    if begun_again:
        history = read_metric_history(launch.paths.run(record.index))
        loaded.curve.add_points(
            point
            for judged in history
            for point in _extract_point(judged.select_values_not_undone(), judged.row.step, metric)
        )
    loaded.read_all_points()
    return loaded


def _extract_point(values: Mapping[str, Any], step: object, metric: str) -> Iterator[Point]:
    value, at = metric_value_to_number(values.get(metric)), normalize_step(step)
    if at is not None and value is not None:
        with suppress(OverflowError):
            yield float(at), value


@dataclass(slots=True, kw_only=True)
class GrowingFile:
    """A file of JSON lines. Of a long file only the last `most` bytes are read at first, if given.

    A file that was replaced, or has become shorter, is read from its beginning. `begin` is where to start.
    """

    path: Path
    most: int | None = None
    begin: int = 0
    _inode: int | None = field(default=None, init=False)
    _end: int = field(default=0, init=False)

    def read_new_rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield the new lines that are complete; none if the file cannot be read."""
        with suppress(OSError):
            seen = self.path.stat()
            start = self._find_read_position(seen.st_ino, seen.st_size)
            if seen.st_size == start:
                return
            for row, end in read_rows_with_offsets(self.path, start=start):
                if end > self._end:  # else the line is not complete yet
                    self._end = end
                    yield row

    def _find_read_position(self, inode: int, size: int) -> int:
        if self._inode is None:
            self._end = max(self.begin, 0 if self.most is None else size - self.most)
        elif inode != self._inode:
            self._end = 0
        if size < self._end:
            self._end = 0
        self._inode = inode
        return self._end
