"""Reads the attempts of a run: which there are, and what each recorded."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path

from hpckit.model import events
from hpckit.model.goodput import StepProgress
from hpckit.model.plain import LARGEST, from_plain, is_within
from hpckit.model.states import RunState
from hpckit.record.frozen import unreadable_file
from hpckit.record.layout import AttemptPaths, RunPaths
from hpckit.record.store import read_events, read_json

NUMEROUS = frozenset({events.RankExited.kind, events.CheckpointSaved.kind})
"""Kinds with up to a hundred thousand events per attempt, which a RunRecord does not need."""

_LISTINGS, _LISTING_PAUSE_S = 3, 0.3


def latest_attempt(attempts: Path) -> int:
    """Return the number of the latest attempt in a run's attempts folder, 0 if there is none.

    Raises as `attempt_numbers`.
    """
    return max(attempt_numbers(attempts), default=0)


def is_latest(attempts: Path, number: int) -> bool:
    """Return whether this existing attempt (or round) is the latest in its folder.

    This is the fence. Raises OSError if the folder cannot be listed: that must not count as
    "nothing newer". Listing is retried briefly, because a file system that fails over to another
    server fails for a moment.
    """
    return max(_listed(attempts), default=None) == number


def attempt_numbers(attempts: Path) -> tuple[int, ...]:
    """Return the numbers of the attempts in a run's attempts folder, in ascending order.

    Raises FrozenFolderError if the folder exists but cannot be read: that must not count as "no
    attempts yet", or the run would start again.
    """
    try:
        return tuple(sorted(_listed(attempts, final=FileNotFoundError)))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unreadable_file(attempts, str(error)) from error


def _listed(attempts: Path, *, final: type[OSError] | tuple[()] = ()) -> list[int]:
    """Return the numbers in a folder; errors that are not `final` are retried."""
    for _ in range(_LISTINGS - 1):
        try:
            return numbers_in(attempts)
        except final:
            raise
        except OSError:
            time.sleep(_LISTING_PAUSE_S)
    return numbers_in(attempts)


def numbers_in(attempts: Path) -> list[int]:
    """Return the numbers that entries of a folder have as names; raises OSError."""
    names = [entry.name for entry in attempts.iterdir()]
    return [int(name) for name in names if name.isdecimal()]


def progress_of(attempt: AttemptPaths) -> tuple[int | None, int | None]:
    """Return the latest recorded step and the number of steps; None for what is not known."""
    try:
        noted = read_json(attempt.progress)
        step, total = noted["step"], noted.get("total")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, None
    return _whole(step), _whole(total)


def _whole(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if is_within(value, LARGEST) else None


def read_attempts(
    run: RunPaths, *, without: Collection[str] = ()
) -> Iterator[tuple[int, tuple[events.Event, ...]]]:
    """Yield every attempt of a run, oldest first: its number, and its events in order.

    Each attempt is read on demand, without the kinds of events in `without`. An attempt has no
    events if its supervisor was killed at once or could not write.
    """
    for number in attempt_numbers(run.attempts):
        yield number, tuple(told_of(run.attempt(number), without=without))


def told_of(attempt: AttemptPaths, *, without: Collection[str] = ()) -> Iterator[events.Event]:
    """Yield the events of an attempt in order; raises FrozenFolderError."""
    try:
        yield from read_events(attempt.events, without=without)
    except OSError as error:
        raise unreadable_file(attempt.events, str(error)) from error


def has_completed(run: RunPaths) -> bool:
    """Return whether any attempt of a run completed; raises FrozenFolderError."""
    told = (event for _, attempt in read_attempts(run) for event in attempt)
    ends = (event.state for event in told if isinstance(event, events.AttemptEnded))
    return RunState.completed in ends


def read_progress(attempt: AttemptPaths) -> StepProgress | None:
    """Return the latest step of an attempt; None if there is none or the file cannot be read."""
    try:
        return from_plain(StepProgress, read_json(attempt.progress))
    except (OSError, ValueError, TypeError):
        return None
