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
    mark_values_undone_by_restarts,
    metric_value_to_number,
    normalize_step,
)
from hpckit.record.attempts import NUMEROUS, list_attempt_numbers, read_events_by_attempt
from hpckit.record.frozen import unreadable_file_error
from hpckit.record.layout import AttemptPaths, RunPaths
from hpckit.record.metrics.log import OWN_KEYS, RUN_STEP, read_last_values, read_metrics_file_size
from hpckit.record.store import read_rows_with_offsets
from hpckit.values import dataclass

_MOST_READ = 64 << 20
"""Most bytes of rows that are read to find a value that holds behind one that was undone."""


def read_metric_history(run: RunPaths) -> Iterator[JudgedRow]:
    """Yield the rows of a run as they are now, in order of attempts, undone values marked.

    Rows that are added meanwhile are left to the next call. Raises FrozenFolderError.
    """
    files, starts = list[_AttemptRows](), list[RoundStart]()
    for number, history in read_events_by_attempt(run, without=NUMEROUS):
        files.append(_AttemptRows.from_attempt(run.attempt(number), number, history))
        starts += _list_first_steps_of_rounds(number, history)
    return mark_values_undone_by_restarts(_RunRows(files=files), starts)


def read_last_metrics(run: RunPaths, latest: RowPlace) -> dict[str, Any]:
    """Return the last value of each metric of a run that was not undone.

    `latest` is the run's newest round. Metrics whose last value was undone are looked for in the
    rows; in more than 64 MB of rows they are left out instead. Raises FrozenFolderError.
    """
    found: dict[str, _Last] = {}
    numbers = list_attempt_numbers(run.attempts)
    for number in numbers:
        last = read_last_values(run.attempt(number))
        found |= {name: _Last.from_json(number, one) for name, one in last.values.items()}
    undone = _find_undone_metrics(
        run, [name for name, one in found.items() if one.may_later_round_undo(latest)], found
    )
    values = {name: one.value for name, one in found.items() if name not in undone}
    if undone and sum(_metrics_file_size(run.attempt(number)) for number in numbers) <= _MOST_READ:
        behind = last_values_not_undone(read_metric_history(run))
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
    def from_json(cls, attempt: int, one: Mapping[str, Any]) -> _Last:
        number = one["round"]
        known = number if isinstance(number, int) else None
        done_in = one["step"] if one[RUN_STEP] is None else one[RUN_STEP]
        return cls(attempt, known, normalize_step(done_in), one["value"])

    def may_later_round_undo(self, latest: RowPlace) -> bool:
        """Return whether a later round than that of its row may have undone it."""
        number = self.round
        if number is None and latest[1] == 0:
            number = 0  # the only one of its attempt, if that is the latest
        return self.step is not None and (self.attempt, number) != latest

    def did_later_round_undo(self, floors: RoundFloors) -> bool:
        """Return whether a later round began at its step or before, as far as that is known."""
        if self.step is None:
            return False
        return self.round is None or self.step >= floors.lowest_start_step_after((self.attempt, self.round))


def _find_undone_metrics(run: RunPaths, names: Sequence[str], found: Mapping[str, _Last]) -> Collection[str]:
    if not names:
        return ()
    told = read_events_by_attempt(run, without=NUMEROUS)
    floors = RoundFloors.from_round_starts(
        start for number, history in told for start in _list_first_steps_of_rounds(number, history)
    )
    return {name for name in names if found[name].did_later_round_undo(floors)}


def _metrics_file_size(paths: AttemptPaths) -> int:
    try:
        return read_metrics_file_size(paths)
    except OSError as error:
        raise unreadable_file_error(paths.metrics, str(error)) from error


def last_values_not_undone(rows: Iterable[JudgedRow]) -> Mapping[str, Any]:
    """Return the last value of each key that was not undone."""
    found: dict[str, Any] = {}
    for judged in rows:
        found |= judged.select_values_not_undone()
    return found


def last_numbers_not_undone(rows: Iterable[JudgedRow]) -> Mapping[str, float]:
    """Return the last value of each key that was not undone, of those that are numbers."""
    numbers = ((key, metric_value_to_number(one)) for key, one in last_values_not_undone(rows).items())
    return {key: number for key, number in numbers if number is not None}


def _list_first_steps_of_rounds(attempt: int, history: Iterable[events.Event]) -> Iterator[RoundStart]:
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
    def from_attempt(cls, paths: AttemptPaths, attempt: int, history: Iterable[events.Event]) -> _AttemptRows:
        """Return the rows that an attempt has now."""
        rounds = [event for event in history if isinstance(event, events.RoundStarted)]
        return cls(
            paths=paths,
            attempt=attempt,
            size=_metrics_file_size(paths),
            began=[event.at for event in rounds],
            rounds=[event.round for event in rounds],
        )

    def __iter__(self) -> Iterator[MetricRow]:
        try:
            for record, end in read_rows_with_offsets(self.paths.metrics):
                if end > self.size:
                    return
                values = {key: one for key, one in record.items() if key not in OWN_KEYS}
                yield MetricRow(
                    place=(self.attempt, self._find_round_of_row(record)),
                    step=normalize_step(record.get("step")),
                    at=str(record.get("at", "")),
                    values=values,
                    run_step=normalize_step(record.get(RUN_STEP)),
                )
        except OSError as error:
            raise unreadable_file_error(self.paths.metrics, str(error)) from error

    def _find_round_of_row(self, record: Mapping[str, Any]) -> int:
        named = record.get("round")
        if isinstance(named, int):
            return named
        try:
            at = datetime.fromisoformat(str(record["at"]))
            return self.rounds[max(bisect_right(self.began, at) - 1, 0)]
        except (KeyError, ValueError, TypeError, IndexError):
            return 0
