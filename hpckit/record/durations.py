"""How long runs with the same computation took, for longest-first order.

It reads earlier attempts of a few launches. A launch that cannot be read is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path

from hpckit.errors import HpckitError
from hpckit.model import events
from hpckit.record.attempts import has_completed_attempt, read_events_by_attempt
from hpckit.record.launches import Launch, load_launch
from hpckit.record.lookup import list_own_launches

_LAUNCHES = 5
_RUNS = 2000
"""Upper limit on reading: order is a small gain, and a launch should not wait for it."""


def find_durations_by_signature(output_dir: Path, name: str, wanted: Collection[str]) -> dict[str, timedelta]:
    """Return how long completed runs with these signatures took; the newest known value counts.

    Only the latest launches with this name are read.
    """
    found: dict[str, timedelta] = {}
    for signature, took in islice(_list_durations_of_completed_runs(output_dir, name, wanted), _RUNS):
        if took is not None:
            found.setdefault(signature, took)
    return found


def sum_attempt_durations(launch: Launch, index: int) -> timedelta | None:
    """Return how long a run took so far, over its ended attempts; None if it has none."""
    known = []
    for _, told in read_events_by_attempt(launch.paths.run(index)):
        began = [event.at for event in told if isinstance(event, events.AttemptStarted)]
        ended = [event.at for event in told if isinstance(event, events.AttemptEnded)]
        if began and ended:
            known.append(ended[-1] - began[0])
    return sum(known, timedelta()) if known else None


def _list_durations_of_completed_runs(
    output_dir: Path, name: str, wanted: Collection[str]
) -> Iterator[tuple[str, timedelta | None]]:
    mine = (folder for folder in list_own_launches(output_dir) if folder.name.startswith(f"{name}-"))
    for folder in islice(mine, _LAUNCHES):
        try:
            launch = load_launch(folder)
        except HpckitError:
            continue
        for run in launch.runs:
            if run.signature in wanted:
                done = has_completed_attempt(launch.paths.run(run.index))
                yield run.signature, sum_attempt_durations(launch, run.index) if done else None
