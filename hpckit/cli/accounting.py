"""The accounts of runs: their files read, and what they say added up (planning.goodput).

Responsible for choosing what is read; it reads every attempt of a run, so it is for verbs that
were asked for an account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from hpckit.model.goodput import Goodput
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.planning.goodput import account, submissions
from hpckit.record.launches import Launch, read_attempts, read_launch_events, read_progress

_GOES_ON = frozenset({RunState.pending, RunState.running})


def accounts(launch: Launch, views: Iterable[RunView], now: datetime) -> Mapping[int, Goodput]:
    """Return the account of each of these runs of a launch, by index."""
    given = submissions(launch.jobs, read_launch_events(launch))
    return {
        view.record.index: _account(launch, view, given.get(view.record.index, ()), now)
        for view in views
    }


def _account(launch: Launch, view: RunView, given: Iterable[datetime], now: datetime) -> Goodput:
    index = view.record.index
    attempts = tuple(read_attempts(launch, index))
    said = {number: read_progress(launch, index, number) for number, _ in attempts}
    return account(
        attempts,
        submissions=given,
        progress={number: one for number, one in said.items() if one is not None},
        until=now if view.state in _GOES_ON else None,
        alive=view.state is RunState.running and not view.requeued,
    )
