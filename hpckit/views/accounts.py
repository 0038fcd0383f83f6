"""The accounts of runs: reads their files, which planning.goodput adds up.

Every attempt of a run is read, so use it only in verbs that were asked for an account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from hpckit.model.goodput import Goodput, TimeSpan
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.planning.goodput.account import (
    Attempts,
    ToldOfRun,
    compute_goodput,
    list_submission_times,
    list_time_spans,
)
from hpckit.record.attempts import read_events_by_attempt, read_progress
from hpckit.record.index import RunIndex
from hpckit.record.launches import Launch, read_launch_events

_GOES_ON = frozenset({RunState.pending, RunState.running})


def compute_goodput_by_run(
    launch: Launch, views: Iterable[RunView], now: datetime, kept: RunIndex | None = None
) -> Mapping[int, Goodput]:
    """Return the account of each of these runs of a launch, by index.

    The account of an ended run is taken from `kept` if it is still valid there, and else saved to it.
    """
    given = list_submission_times(launch.jobs, read_launch_events(launch))
    found = {}
    for view in views:
        run = view.record.index
        times = given.get(run, ())
        index = None if view.state in _GOES_ON else kept
        known = None if index is None else index.find_up_to_date_goodput(run, times)
        if known is None:
            attempts, told = _read_goodput_inputs(launch, view, times, now)
            known = compute_goodput(attempts, **told)
            if index is not None:
                index.cache_goodput_of_run(run, times, known)
        found[run] = known
    if kept is not None:
        kept.save_new_entries()
    return found


def list_time_spans_by_run(
    launch: Launch, views: Iterable[RunView], now: datetime
) -> Mapping[int, tuple[TimeSpan, ...]]:
    """Return when each of these runs did what, by index; the sums are those of its account."""
    given = list_submission_times(launch.jobs, read_launch_events(launch))
    found = {}
    for view in views:
        attempts, told = _read_goodput_inputs(launch, view, given.get(view.record.index, ()), now)
        found[view.record.index] = list_time_spans(attempts, **told)
    return found


def _read_goodput_inputs(
    launch: Launch, view: RunView, given: Iterable[datetime], now: datetime
) -> tuple[Attempts, ToldOfRun]:
    run = launch.paths.run(view.record.index)
    attempts = tuple(read_events_by_attempt(run))
    said = {number: read_progress(run.attempt(number)) for number, _ in attempts}
    return attempts, ToldOfRun(
        submissions=given,
        progress={number: one for number, one in said.items() if one is not None},
        until=now if view.state in _GOES_ON else None,
        alive=view.state is RunState.running and not view.requeued_since_last_attempt,
    )
