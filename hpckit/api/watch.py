"""What several handles of one launch know together while they wait; may be used by several threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from hpckit.context import Context
from hpckit.model.run import RunView
from hpckit.record.launches import check_launch_exists, load_launch_of_any_owner
from hpckit.views.launch_view import Ask, build_launch_view
from hpckit.views.poller import Poller

Place = tuple[Path, int]
"""A run: the folder of its launch, and its index there."""

_RECORD_S, _SHARE = 0.25, 10
"""The record is read this often, and at most one part in ten of the time is spent with it."""


class Renewable(Protocol):
    """What has locks or threads, which a forked child has to make anew."""

    def renew_after_fork(self) -> None:
        """Make new locks: no thread of the child could give back the old ones."""


_renewables: WeakSet[Renewable] = WeakSet()
renew_in_children = _renewables.add
"""Have something renewed in each child process that this one forks, as long as it lives."""


def _renew_after_fork() -> None:
    for one in list(_renewables):
        one.renew_after_fork()


os.register_at_fork(after_in_child=_renew_after_fork)


def group_places(places: Sequence[Place]) -> Mapping[Path, Sequence[int]]:
    """Return the indices of runs by the folder of their launch, each once."""
    found: dict[Path, set[int]] = {}
    for folder, index in places:
        found.setdefault(folder, set()).add(index)
    return {folder: sorted(indices) for folder, indices in found.items()}


class Watch:
    """Polls the launches of these runs: Slurm is asked once for all that wait for any of them."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._pollers: dict[Path, Poller] = {}
        self._lock = threading.RLock()
        renew_in_children(self)
        self._polled_at = 0.0
        self.pause_s = _RECORD_S

    def look(self, places: Sequence[Place], context: Context) -> tuple[bool, Sequence[RunView]]:
        """Look again, unless another thread has just done so; return whether these runs are over, and how.

        Raises NotFoundError if a launch has been removed.
        """
        with self._lock:
            began = time.monotonic()
            if not self._pollers or began - self._polled_at >= self.pause_s / 2:
                self._poll(places, context)
                self._polled_at = time.monotonic()
                self.pause_s = max(_RECORD_S, (self._polled_at - began) * _SHARE)
            over = all(index in self._pollers[folder].settled for folder, index in places)
            known = ((self._pollers[folder].known, index) for folder, index in places)
            return over, [views[index] for views, index in known if index in views]

    def _poll(self, places: Sequence[Place], context: Context) -> None:
        self._pollers = self._pollers or {
            folder: Poller(launch=load_launch_of_any_owner(folder), context=context, indices=runs)
            for folder, runs in group_places(self._places).items()
        }
        for folder in group_places(places):
            check_launch_exists(folder)
        for poller in self._pollers.values():
            if not poller.are_all_runs_over:
                poller.poll_once()

    def renew_after_fork(self) -> None:
        """Make a new lock."""
        self._lock = threading.RLock()

    def look_again_at_ended(self, context: Context) -> None:
        """Wait again for ended runs that another process has resumed since; asks Slurm nothing."""
        with self._lock:
            for poller in self._pollers.values():
                ended = sorted(poller.settled)
                for view in build_launch_view(poller.launch, context, ask=Ask.nothing, indices=ended).runs:
                    before = poller.known[view.record.index].record
                    if (view.record.attempt, view.record.state) != (before.attempt, before.state):
                        poller.settled.discard(view.record.index)

    def forget_ends(self) -> None:
        """Look at all runs from now on: what had ended may go on."""
        with self._lock:
            self._pollers.clear()
