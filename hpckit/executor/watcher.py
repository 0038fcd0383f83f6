"""One thread that looks for the ends of all jobs of this process, in our record and in Slurm's queue.

Its questions to Slurm are for all jobs of a launch, and their answers are shared with the user's
other processes. It must not start or stop runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from hpckit.api.invocation import build_python_context
from hpckit.api.watch import renew_in_children
from hpckit.errors import HpckitError
from hpckit.model.launch import ClusterKind
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.record.launches import Launch
from hpckit.values import dataclass, field
from hpckit.views.launch_view import Ask, build_launch_view
from hpckit.views.poller import Poller

_LOG = logging.getLogger("hpckit")
_LEAST_S, _MOST_S, _SHARE = 0.05, 1.0, 10
"""Pauses grow with the time since the last end, and are ten times as long as a look takes."""
_GONE_S = 60.0
"""What no record states counts after this time, if Slurm's queue and accounting still agree then."""
_UNSTATED = frozenset({RunState.unknown, RunState.interrupted})


class Waiting(Protocol):
    """What waits for the end of a run."""

    def settle(self, end: RunView | Exception, late: bool) -> bool:  # noqa: FBT001  # of a pair
        """End as the run did, or with an error; return False while files are not visible, unless `late`."""


_Ends = dict[int, tuple[RunView | Exception, bool]]
"""How runs ended, or why that is not known; and whether that is late."""


@dataclass(slots=True, kw_only=True)
class _WatchedLaunch:
    """The open jobs of a launch by run, and since when the end of a run, or the record (-1), is in doubt."""

    poller: Poller
    jobs: dict[int, list[Waiting]] = field(default_factory=dict)
    doubts: dict[int, float] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    seen_at: float = -_MOST_S
    pause_s: float = _LEAST_S

    def settle_ended_runs(self) -> int:
        """Look once; return how many runs have ended. What cannot be read for a minute ends its jobs.

        Jobs end without the lock: reading a result runs the user's code, which may use other jobs.
        """
        with self.lock:
            began = time.monotonic()
            ends = self._find_ends()
            self.seen_at = time.monotonic()
            self.pause_s = max(_LEAST_S, (self.seen_at - began) * _SHARE)
            ending = [(index, end, tuple(self.jobs[index])) for index, end in ends.items()]
        settled = {index: [job for job in jobs if job.settle(*end)] for index, end, jobs in ending}
        with self.lock:
            for index, gone in settled.items():
                self.jobs[index] = [job for job in self.jobs.get(index, ()) if job not in gone]
                if self.jobs[index]:
                    self.poller.settled.discard(index)
                else:
                    del self.jobs[index]
        return sum(index not in self.jobs for index in settled)

    def _find_ends(self) -> _Ends:
        """Return the ends that count; a look that asked Slurm ends the doubts about what is not over."""
        asked_at, on_slurm = self.poller.asked_at, self.poller.launch.cluster.kind is ClusterKind.slurm
        try:
            self.poller.poll_once()
        except (HpckitError, OSError) as error:
            return dict.fromkeys(self.jobs, (error, True)) if self._is_late(-1) else {}
        self.doubts.pop(-1, None)
        over = [index for index in self.jobs if index in self.poller.settled]
        ends: _Ends = {}
        for index in over:
            view, late = self.poller.known[index], not on_slurm or self._is_late(index)
            agreed = late and not self.poller.warning  # which says that Slurm does not answer
            if agreed or view.state not in _UNSTATED:
                ends[index] = (view, late)
            else:
                self.poller.settled.discard(index)
        if self.poller.asked_at != asked_at:
            self.doubts = {index: at for index, at in self.doubts.items() if index in (-1, *over)}
        return ends

    def _is_late(self, index: int) -> bool:
        return time.monotonic() - self.doubts.setdefault(index, time.monotonic()) >= _GONE_S


class Watcher:
    """Looks for ends as long as jobs are open; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._watched: dict[Path, _WatchedLaunch] = {}
        self._thread: threading.Thread | None = None
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """Begin anew in a child process, which may wait for the jobs of its parent, too."""
        self._lock, self._thread = threading.Condition(), None
        for watched in self._watched.values():
            watched.lock = threading.RLock()
        self._start()

    def watch(self, launch: Launch, jobs: Mapping[int, Waiting]) -> None:
        """Settle these jobs, by the index of their run, once their runs have ended."""
        with self._lock:
            watched = self._watched.get(launch.folder)
            if watched is None:
                poller = Poller(launch=launch, context=build_python_context(), indices=())
                poller.asked_at -= poller.rhythm.first  # ends of long ago are seen at the first look
                watched = self._watched[launch.folder] = _WatchedLaunch(poller=poller)
            with watched.lock:
                for index, job in jobs.items():
                    watched.jobs.setdefault(index, []).append(job)
                    watched.poller.settled.discard(index)
                watched.poller.indices = tuple(watched.jobs)
            self._start()

    def _start(self) -> None:
        if self._thread is None and self._watched:
            self._thread = threading.Thread(target=self._run, name="hpckit-watcher", daemon=True)
            self._thread.start()

    def read_view(self, launch: Launch, index: int) -> RunView:
        """Return how a run stands, which may be a look ago: there is one for all runs of a launch."""
        watched = self._watched.get(launch.folder)
        if watched is not None and time.monotonic() - watched.seen_at >= watched.pause_s:
            watched.settle_ended_runs()
        if watched is not None and index in watched.poller.known:
            return watched.poller.known[index]
        return build_launch_view(launch, build_python_context(), ask=Ask.nothing, indices=[index]).runs[0]

    def update(self, *, force: bool = False) -> int:
        """Look at once, and with `force` ask Slurm; return how many runs have ended."""
        with self._lock:
            every = list(self._watched.values())
        for watched in every if force else ():
            watched.poller.asked_at -= watched.poller.pause
        over = sum(watched.settle_ended_runs() for watched in every)
        with self._lock:
            self._watched = {folder: one for folder, one in self._watched.items() if one.jobs}
        return over

    def _run(self) -> None:
        ended_at = time.monotonic()
        while True:
            began = time.monotonic()
            try:
                ended_at = began if self.update() else ended_at
            except Exception:  # noqa: BLE001  # a thread that dies would leave all jobs waiting
                _LOG.exception("looking for the ends of jobs failed; it is tried again")
            now = time.monotonic()
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                pause = max(min(_MOST_S, max(_LEAST_S, (now - ended_at) / _SHARE)), (now - began) * _SHARE)
                self._lock.wait(pause)


WATCHER = Watcher()
