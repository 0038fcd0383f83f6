"""Reads the attempts of a run: which there are, and what each recorded."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path

from hpckit.model import events
from hpckit.model.goodput import StepProgress
from hpckit.model.plain import LARGEST, from_plain, is_within_limit
from hpckit.model.states import RunState
from hpckit.record.frozen import unreadable_file_error
from hpckit.record.layout import AttemptPaths, RunPaths
from hpckit.record.store import read_events, read_json

NUMEROUS = frozenset({events.RankExited.kind, events.CheckpointSaved.kind})
"""Kinds with up to a hundred thousand events per attempt, which a RunRecord does not need."""

_LISTINGS, _LISTING_PAUSE_S = 3, 0.3


def latest_attempt_number(attempts: Path) -> int:
    """Return the number of the latest attempt in a run's attempts folder, 0 if there is none.

    Raises as `list_attempt_numbers`.
    """
    return max(list_attempt_numbers(attempts), default=0)


def is_latest_attempt(attempts: Path, number: int) -> bool:
    """Return whether this existing attempt (or round) is the latest in its folder.

    This is the fence. Raises OSError if the folder cannot be listed: that must not count as "nothing newer".
    Listing is retried briefly, because a file system that fails over to another server fails for a moment.
    """
    return max(_list_numbers_with_retries(attempts), default=None) == number


def list_attempt_numbers(attempts: Path) -> tuple[int, ...]:
    """Return the numbers of the attempts in a run's attempts folder, in ascending order.

    Raises FrozenFolderError if the folder exists but cannot be read: that must not count as "no
    attempts yet", or the run would start again.
    """
    try:
        return tuple(sorted(_list_numbers_with_retries(attempts, final=FileNotFoundError)))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unreadable_file_error(attempts, str(error)) from error


def _list_numbers_with_retries(attempts: Path, *, final: type[OSError] | tuple[()] = ()) -> list[int]:
    """Return the numbers in a folder; errors that are not `final` are retried."""
    for _ in range(_LISTINGS - 1):
        try:
            return list_numeric_entry_names(attempts)
        except final:
            raise
        except OSError:
            time.sleep(_LISTING_PAUSE_S)
    return list_numeric_entry_names(attempts)


def list_numeric_entry_names(attempts: Path) -> list[int]:
    """Return the numbers that entries of a folder have as names; raises OSError."""
    names = [entry.name for entry in attempts.iterdir()]
    return [int(name) for name in names if name.isdecimal()]


def read_step_and_total_steps(attempt: AttemptPaths) -> tuple[int | None, int | None]:
    """Return the latest recorded step and the number of steps; None for what is not known."""
    try:
        noted = read_json(attempt.progress)
        step, total = noted["step"], noted.get("total")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, None
    return _integer_or_none(step), _integer_or_none(total)


def _integer_or_none(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if is_within_limit(value, LARGEST) else None


def read_events_by_attempt(
    run: RunPaths, *, without: Collection[str] = ()
) -> Iterator[tuple[int, tuple[events.Event, ...]]]:
    """Yield every attempt of a run, oldest first: its number, and its events in order.

    Each attempt is read on demand, without the kinds of events in `without`. An attempt has no
    events if its supervisor was killed at once or could not write.
    """
    for number in list_attempt_numbers(run.attempts):
        yield number, tuple(read_attempt_events(run.attempt(number), without=without))


def read_attempt_events(attempt: AttemptPaths, *, without: Collection[str] = ()) -> Iterator[events.Event]:
    """Yield the events of an attempt in order; raises FrozenFolderError."""
    try:
        yield from read_events(attempt.events, without=without)
    except OSError as error:
        raise unreadable_file_error(attempt.events, str(error)) from error


def has_completed_attempt(run: RunPaths) -> bool:
    """Return whether any attempt of a run completed; raises FrozenFolderError."""
    told = (event for _, attempt in read_events_by_attempt(run) for event in attempt)
    ends = (event.state for event in told if isinstance(event, events.AttemptEnded))
    return RunState.completed in ends


def read_progress(attempt: AttemptPaths) -> StepProgress | None:
    """Return the latest step of an attempt; None if there is none or the file cannot be read."""
    try:
        return from_plain(StepProgress, read_json(attempt.progress))
    except (OSError, ValueError, TypeError):
        return None
