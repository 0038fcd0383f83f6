"""One run as an exporter sees it: its rows with what was undone, its points, and its names."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from hpckit.model.metrics import JudgedRow, MetricValue, iterate_row_values, metric_value_to_number
from hpckit.model.run import RunView
from hpckit.patterns import lazy_pattern
from hpckit.record.attempts import list_attempt_numbers
from hpckit.record.launches import Launch
from hpckit.record.metrics.history import read_metric_history
from hpckit.record.metrics.log import read_metrics_file_size
from hpckit.values import dataclass, field

_UNSAFE = lazy_pattern(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """A run of a launch, as it was seen at the beginning of the export."""

    launch: Launch
    view: RunView

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.view.record.id

    @property
    def safe_name(self) -> str:
        """Return the id in letters that are safe in a path and in a question to a store."""
        return _UNSAFE.sub("-", self.id).lstrip(".")

    def read_metric_history(self) -> Iterator[JudgedRow]:
        """Yield all rows, with what was undone."""
        return read_metric_history(self.launch.paths.run(self.view.record.index))

    def read_values(self, *, undone: bool) -> Iterator[MetricValue]:
        """Yield every value that holds, and with `undone` those that do not as well."""
        for judged in self.read_metric_history():
            for value in iterate_row_values(judged):
                if undone or not value.undone:
                    yield value

    def change_stamp(self) -> tuple[Any, ...]:
        """Return what changes whenever an export of the run would."""
        run = self.launch.paths.run(self.view.record.index)
        sizes = [read_metrics_file_size(run.attempt(number)) for number in list_attempt_numbers(run.attempts)]
        record = self.view.record
        return self.view.state, record.attempt, record.round, record.step, sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number at one whole step, as trackers take it; `at` is seconds since 1970."""

    key: str
    step: int
    at: float
    number: float


@dataclass(slots=True, kw_only=True)
class Points:
    """The points of a run that hold, for trackers that have a number at each step and no more.

    Iterate it once. Values without a step come last, one per key, at step 0, if the key has no
    other value. `left_out` then counts what has no place there: texts, null, values at fractions of
    a step, further values without a step, and what does not `fit` this tracker.
    """

    run: ExportedRun
    fits: Callable[[Point], bool] = field(default=lambda _: True)
    left_out: int = 0
    written: int = 0

    def __iter__(self) -> Iterator[Point]:
        stepless: dict[str, Point] = {}
        stepped = set[str]()
        for value in self.run.read_values(undone=False):
            number, step = metric_value_to_number(value.value), value.row.step
            if number is None or isinstance(step, float):
                self.left_out += 1
                continue
            key = value.key.encode(errors="backslashreplace").decode()  # JSON has half characters
            at = _parse_timestamp(value.row.at)
            point = Point(key=key, step=step or 0, at=at, number=float(number))
            if not self.fits(point):
                self.left_out += 1
                continue
            if step is None:
                self.left_out += key in stepless
                stepless[key] = point
                continue
            stepped.add(key)
            self.written += 1
            yield point
        last = [point for key, point in stepless.items() if key not in stepped]
        self.left_out += len(stepless) - len(last)
        self.written += len(last)
        yield from last


def _parse_timestamp(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError):
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an export wrote last: of which runs, and how many values of those that had changed.

    `left_out` counts values that its form has no place for.
    """

    runs: tuple[str, ...] = ()
    values: int = 0
    left_out: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(values=self.values + other.values, left_out=self.left_out + other.left_out)


_LONGEST = 250
_DIGITS = 8
_NOT_ALLOWED = lazy_pattern(r"[^A-Za-z0-9_. :/-]")
_NO_PART = frozenset({"", ".", ".."})


def build_mlflow_names(keys: Collection[str]) -> Mapping[str, str]:
    """Return the name of each key: the key itself, or one in the letters that MLflow allows.

    Keys whose names would be the same or too long have some letters of a digest at their end.
    """
    names = {key: _sanitize_mlflow_key(key) for key in keys}
    numbers = Counter(names.values())
    return {
        key: _append_digest(name, key)
        if len(name) > _LONGEST or (numbers[name] > 1 and name != key)
        else name
        for key, name in names.items()
    }


def _sanitize_mlflow_key(key: str) -> str:
    """Return a key in allowed letters; MLflow takes it for a path, which has to be the shortest."""
    parts = _NOT_ALLOWED.sub("_", key).split("/")
    name = "/".join("_" if part in _NO_PART else part for part in parts)
    return f"_{name[1:]}" if name.startswith("..") else name


def _append_digest(name: str, key: str) -> str:
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    return f"{name[: _LONGEST - _DIGITS - 1]}_{digest}"
