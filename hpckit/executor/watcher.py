"""One thread that looks for the ends of all jobs of this process, in our record and in Slurm's queue.

Its questions to Slurm are for all jobs of a launch, and their answers are shared with the user's
other processes. It must not start or stop runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hpckit.api.invocation import build_python_context
from hpckit.api.watch import renew_in_children
from hpckit.errors import HpckitError
from hpckit.model.launch import ClusterKind
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, check_launch_exists
from hpckit.values import dataclass, field
from hpckit.views.poller import Poller

_LOG = logging.getLogger("hpckit")
_LEAST_S, _MOST_S, _SHARE = 0.05, 1.0, 10
"""Pauses grow with the time since the last end, and are ten times as long as a look takes."""
_GONE_S = 60.0
"""What no record states counts after this time, if Slurm's queue and accounting still agree then."""

Settle = Callable[[RunView | Exception, bool], bool]
"""Ends a job as its run did, or with an error: `Job.settle`."""


@dataclass(slots=True, kw_only=True)
class _WatchedLaunch:
    """The open jobs of a launch by run, and since when the end of a run, or the record (-1), is in doubt."""

    poller: Poller
    jobs: list[tuple[int, Settle]] = field(default_factory=list)
    doubts: dict[int, float] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def settle_ended_runs(self) -> int:
        """Look once; return how many jobs have ended. What cannot be read for a minute ends its jobs.

        Jobs end without the lock: reading a result runs the user's code, which may use other jobs.
        """
        with self.lock:
            ends = self._find_ends()
            ending = [(index, settle) for index, settle in self.jobs if index in ends]
        over = {(index, settle) for index, settle in ending if settle(*ends[index])}
        with self.lock:
            self.jobs = [job for job in self.jobs if job not in over]
        return len(over)

    def _find_ends(self) -> dict[int, tuple[RunView | Exception, bool]]:
        """Return the ends that count, or why they are not known, each with whether that is late.

        A look that asked Slurm ends the doubts about what is not over.
        """
        asked_at, on_slurm = self.poller.asked_at, self.poller.launch.cluster.kind is ClusterKind.slurm
        self.poller.indices = sorted({index for index, _ in self.jobs})
        try:
            self.poller.poll_once()
        except (HpckitError, OSError) as error:
            return dict.fromkeys(self.poller.indices, (error, True)) if self._is_late(-1) else {}
        self.doubts.pop(-1, None)
        over, self.poller.settled = self.poller.settled, set()  # jobs that stay are looked at again
        ends: dict[int, tuple[RunView | Exception, bool]] = {}
        for index in over:
            view, late = self.poller.known[index], not on_slurm or self._is_late(index)
            agreed = late and not self.poller.warning  # which says that Slurm does not answer
            if agreed or view.state not in {RunState.unknown, RunState.interrupted}:
                ends[index] = (view, late)
        if self.poller.asked_at != asked_at:
            self.doubts = {index: at for index, at in self.doubts.items() if index in over}
        return ends

    def _is_late(self, index: int) -> bool:
        return time.monotonic() - self.doubts.setdefault(index, time.monotonic()) >= _GONE_S


class Watcher:
    """Looks for ends as long as jobs are open; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._watched: dict[Path, _WatchedLaunch] = {}
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """Begin anew in a child process, which may wait for the jobs of its parent, too."""
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        for watched in self._watched.values():
            watched.lock = threading.RLock()
        self._start()

    def watch(self, launch: Launch, jobs: Iterable[tuple[int, Settle]]) -> None:
        """Settle these jobs, each with the index of its run, once their runs have ended."""
        with self._lock:
            if launch.folder not in self._watched:
                poller = Poller(launch=launch, context=build_python_context())
                poller.asked_at -= poller.rhythm.first  # ends of long ago are seen at the first look
                self._watched[launch.folder] = _WatchedLaunch(poller=poller)
            watched = self._watched[launch.folder]
            with watched.lock:
                watched.jobs += jobs
            self._start()

    def _start(self) -> None:
        if self._thread is None and self._watched:
            self._thread = threading.Thread(target=self._run, name="hpckit-watcher", daemon=True)
            self._thread.start()

    def find_view(self, folder: Path, index: int) -> RunView | None:
        """Return how a run stood at the latest look, None before it; raises NotFoundError if it is gone."""
        check_launch_exists(folder)
        watched = self._watched.get(folder)
        return None if watched is None else watched.poller.known.get(index)

    def update(self, *, force: bool = False) -> int:
        """Look at once, and with `force` ask Slurm; return how many jobs have ended."""
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
            pause_s = min(_MOST_S, max(_LEAST_S, (now - ended_at) / _SHARE))
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                self._lock.wait(max(pause_s, (now - began) * _SHARE))


WATCHER = Watcher()
