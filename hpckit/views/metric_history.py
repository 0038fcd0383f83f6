"""Reads the metrics of a run, over all its attempts, with what restarts have undone.

planning.history has the rules. Rows are streamed from their files, twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hpckit.model import events
from hpckit.model.metrics.rows import (
    JudgedRow,
    MetricRow,
    RoundStart,
    number_of,
    recorded_step,
)
from hpckit.planning.history import effective_history
from hpckit.record.frozen import unreadable_file
from hpckit.record.launches import NUMEROUS, Launch, read_attempts
from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics import OWN_KEYS, metrics_size, read_metrics


def metric_history(launch: Launch, index: int) -> Iterator[JudgedRow]:
    """Yield the rows of a run as they are now, in order of attempts, undone values marked.

    Rows that are added meanwhile are left to the next call. Raises FrozenFolderError.
    """
    files, starts = list[_AttemptRows](), list[RoundStart]()
    for number, history in read_attempts(launch, index, without=NUMEROUS):
        paths = launch.paths.run(index).attempt(number)
        files.append(_AttemptRows.of(paths, number, history))
        starts += _starts(number, history)
    return effective_history(_RunRows(files=files), starts)


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
    """The rows in the first `size` bytes of an attempt's file.

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
        try:
            size = metrics_size(paths)
        except OSError as error:
            raise unreadable_file(paths.metrics, str(error)) from error
        return cls(
            paths=paths,
            attempt=attempt,
            size=size,
            began=[event.at for event in rounds],
            rounds=[event.round for event in rounds],
        )

    def __iter__(self) -> Iterator[MetricRow]:
        try:
            for record in read_metrics(self.paths, self.size):
                values = dict(record)
                for key in OWN_KEYS:
                    values.pop(key, None)
                yield MetricRow(
                    place=(self.attempt, self._round(record)),
                    step=recorded_step(record.get("step")),
                    at=str(record.get("at", "")),
                    values=values,
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
