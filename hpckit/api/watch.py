"""What several handles of one launch know together while they wait; may be used by several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.context import Context
from hpckit.model.run import RunView
from hpckit.record.launches import load_launch_of_any_owner
from hpckit.views.launch_view import Ask, build_launch_view
from hpckit.views.poller import Poller

Place = tuple[Path, int]
"""A run: the folder of its launch, and its index there."""

_RECORD_S, _SHARE = 0.25, 10
"""The record is read this often, and at most one part in ten of the time is spent with it."""


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
        self._polled_at = 0.0
        self.pause_s = _RECORD_S

    def poll(self, context: Context) -> None:
        """Look again, unless another thread has just done so."""
        with self._lock:
            began = time.monotonic()
            if self._pollers and began - self._polled_at < self.pause_s / 2:
                return
            if not self._pollers:
                for folder, runs in group_places(self._places).items():
                    launch = load_launch_of_any_owner(folder)
                    self._pollers[folder] = Poller(launch=launch, context=context, indices=runs)
            for poller in self._pollers.values():
                if not poller.are_all_runs_over:
                    poller.poll_once()
            self._polled_at = time.monotonic()
            self.pause_s = max(_RECORD_S, (self._polled_at - began) * _SHARE)

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

    def are_over(self, places: Sequence[Place]) -> bool:
        """Return whether nothing more will happen to these runs."""
        with self._lock:
            known = self._pollers
            return all(folder in known and index in known[folder].settled for folder, index in places)

    def list_views(self, places: Sequence[Place]) -> Sequence[RunView]:
        """Return the latest view of each of these runs that was seen."""
        with self._lock:
            known = {folder: poller.known for folder, poller in self._pollers.items()}
            seen = (known.get(folder, {}).get(index) for folder, index in places)
            return [view for view in seen if view is not None]
