"""Reads the metrics of a run, over all its attempts, with what restarts have undone.

model.metrics has the rules. Rows are streamed from their files, twice; a run's last values
alone come from the small files beside them, if they tell.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from hpckit.model import events
from hpckit.model.metrics import (
    JudgedRow,
    MetricRow,
    RoundFloors,
    RoundStart,
    RowPlace,
    Step,
    effective_history,
    number_of,
    recorded_step,
)
from hpckit.record.attempts import NUMEROUS, attempt_numbers, read_attempts
from hpckit.record.frozen import unreadable_file
from hpckit.record.layout import AttemptPaths, RunPaths
from hpckit.record.metrics.log import OWN_KEYS, RUN_STEP, last_values, metrics_size
from hpckit.record.store import read_rows
from hpckit.values import dataclass

_MOST_READ = 64 << 20
"""Most bytes of rows that are read to find a value that holds behind one that was undone."""


def metric_history(run: RunPaths) -> Iterator[JudgedRow]:
    """Yield the rows of a run as they are now, in order of attempts, undone values marked.

    Rows that are added meanwhile are left to the next call. Raises FrozenFolderError.
    """
    files, starts = list[_AttemptRows](), list[RoundStart]()
    for number, history in read_attempts(run, without=NUMEROUS):
        files.append(_AttemptRows.of(run.attempt(number), number, history))
        starts += _starts(number, history)
    return effective_history(_RunRows(files=files), starts)


def run_metrics(run: RunPaths, latest: RowPlace) -> dict[str, Any]:
    """Return the last value of each metric of a run that was not undone.

    `latest` is the run's newest round. Metrics whose last value was undone are looked for in the
    rows; in more than 64 MB of rows they are left out instead. Raises FrozenFolderError.
    """
    found: dict[str, _Last] = {}
    numbers = attempt_numbers(run.attempts)
    for number in numbers:
        last = last_values(run.attempt(number))
        found |= {name: _Last.of(number, one) for name, one in last.values.items()}
    undone = _undone(run, [name for name, one in found.items() if one.in_doubt(latest)], found)
    values = {name: one.value for name, one in found.items() if name not in undone}
    if undone and sum(_size(run.attempt(number)) for number in numbers) <= _MOST_READ:
        behind = last_live_values(metric_history(run))
        values |= {name: behind[name] for name in undone if name in behind}
    return values


@dataclass(frozen=True, slots=True)
class _Last:
    """The last value of a metric; `round` is None if its row does not name it.

    `step` is the step of the run in which it was logged.
    """

    attempt: int
    round: int | None
    step: Step | None
    value: Any

    @classmethod
    def of(cls, attempt: int, one: Mapping[str, Any]) -> _Last:
        number = one["round"]
        known = number if isinstance(number, int) else None
        done_in = one["step"] if one[RUN_STEP] is None else one[RUN_STEP]
        return cls(attempt, known, recorded_step(done_in), one["value"])

    def in_doubt(self, latest: RowPlace) -> bool:
        """Return whether a later round than that of its row may have undone it."""
        number = self.round
        if number is None and latest[1] == 0:
            number = 0  # the only one of its attempt, if that is the latest
        return self.step is not None and (self.attempt, number) != latest

    def undone(self, floors: RoundFloors) -> bool:
        """Return whether a later round began at its step or before, as far as that is known."""
        if self.step is None:
            return False
        return self.round is None or self.step >= floors.after((self.attempt, self.round))


def _undone(run: RunPaths, names: Sequence[str], found: Mapping[str, _Last]) -> Collection[str]:
    if not names:
        return ()
    told = read_attempts(run, without=NUMEROUS)
    floors = RoundFloors.of(one for number, history in told for one in _starts(number, history))
    return {name for name in names if found[name].undone(floors)}


def _size(paths: AttemptPaths) -> int:
    try:
        return metrics_size(paths)
    except OSError as error:
        raise unreadable_file(paths.metrics, str(error)) from error


def last_live_values(rows: Iterable[JudgedRow]) -> Mapping[str, Any]:
    """Return the last value of each key that was not undone."""
    found: dict[str, Any] = {}
    for judged in rows:
        found |= judged.live()
    return found


def last_live_numbers(rows: Iterable[JudgedRow]) -> Mapping[str, float]:
    """Return the last value of each key that was not undone, of those that are numbers."""
    numbers = ((key, number_of(one)) for key, one in last_live_values(rows).items())
    return {key: number for key, number in numbers if number is not None}


def _starts(attempt: int, history: Iterable[events.Event]) -> Iterator[RoundStart]:
    """Yield the first step of each round of an attempt, from either event that has it."""
    for event in history:
        match event:
            case events.StepReached():
                yield RoundStart(place=(attempt, event.round), step=event.step)
            case events.RoundEnded(first_step=int() as step):
                yield RoundStart(place=(attempt, event.round), step=step)
            case _:
                pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunRows:
    """The rows of a run; may be iterated several times, with the same result."""

    files: list[_AttemptRows]

    def __iter__(self) -> Iterator[MetricRow]:
        for file in self.files:
            yield from file


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttemptRows:
    """The rows in the first `size` bytes of an attempt's file, the same at each reading.

    `began` are the times at which its `rounds` began, for rows that do not name theirs.
    """

    paths: AttemptPaths
    attempt: int
    size: int
    began: list[datetime]
    rounds: list[int]

    @classmethod
    def of(cls, paths: AttemptPaths, attempt: int, history: Iterable[events.Event]) -> _AttemptRows:
        """Return the rows that an attempt has now."""
        rounds = [event for event in history if isinstance(event, events.RoundStarted)]
        return cls(
            paths=paths,
            attempt=attempt,
            size=_size(paths),
            began=[event.at for event in rounds],
            rounds=[event.round for event in rounds],
        )

    def __iter__(self) -> Iterator[MetricRow]:
        try:
            for record, end in read_rows(self.paths.metrics):
                if end > self.size:
                    return
                values = {key: one for key, one in record.items() if key not in OWN_KEYS}
                yield MetricRow(
                    place=(self.attempt, self._round(record)),
                    step=recorded_step(record.get("step")),
                    at=str(record.get("at", "")),
                    values=values,
                    run_step=recorded_step(record.get(RUN_STEP)),
                )
        except OSError as error:
            raise unreadable_file(self.paths.metrics, str(error)) from error

    def _round(self, record: Mapping[str, Any]) -> int:
        named = record.get("round")
        if isinstance(named, int):
            return named
        try:
            at = datetime.fromisoformat(str(record["at"]))
            return self.rounds[max(bisect_right(self.began, at) - 1, 0)]
        except (KeyError, ValueError, TypeError, IndexError):
            return 0
