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
from hpckit.errors import HpckitError
from hpckit.model.launch import ClusterKind
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.record.launches import Launch
from hpckit.values import dataclass, field
from hpckit.views.poller import Poller

_LOG = logging.getLogger("hpckit")
_LEAST_S, _MOST_S, _SHARE = 0.05, 1.0, 10
"""Pauses grow with the time since the last end, and are ten times as long as a look takes."""
_GONE_S = 60.0
"""What no record states counts after this time, if Slurm's queue and accounting still agree then."""
_UNSTATED = frozenset({RunState.unknown, RunState.interrupted})


class Waiting(Protocol):
    """What waits for the end of a run."""

    def settle(self, view: RunView, *, late: bool) -> bool:
        """Take in the end of the run; return False while its files are not visible, unless `late`."""

    def refuse(self, error: BaseException) -> None:
        """End with an error."""


@dataclass(slots=True, kw_only=True)
class _WatchedLaunch:
    """The open jobs of a launch by run, and since when the end of a run, or the record (-1), is in doubt."""

    poller: Poller
    jobs: dict[int, list[Waiting]] = field(default_factory=dict)
    doubts: dict[int, float] = field(default_factory=dict)

    def settle_ended_runs(self) -> int:
        """Look once; return how many runs have ended. What cannot be read for a minute ends its jobs."""
        before, asked_at = len(self.jobs), self.poller.asked_at
        try:
            self.poller.poll_once()
            self._settle_runs_that_are_over(asked=self.poller.asked_at != asked_at)
            self.doubts.pop(-1, None)
        except (HpckitError, OSError) as error:
            if self._is_late(-1):
                for job in (job for jobs in self.jobs.values() for job in jobs):
                    job.refuse(error)
                self.jobs.clear()
        return before - len(self.jobs)

    def _settle_runs_that_are_over(self, *, asked: bool) -> None:
        """Settle what is over; a look that asked Slurm ends the doubts about what is not."""
        on_slurm = self.poller.launch.cluster.kind is ClusterKind.slurm
        over = [index for index in self.jobs if index in self.poller.settled]
        for index in over:
            view, late = self.poller.known[index], self._is_late(index)
            stated = view.state not in _UNSTATED or not on_slurm
            agreed = late and not self.poller.warning  # which says that Slurm does not answer
            if (stated or agreed) and all(job.settle(view, late=late) for job in self.jobs[index]):
                del self.jobs[index]
            else:
                self.poller.settled.discard(index)
        if asked:
            self.doubts = {index: at for index, at in self.doubts.items() if index in (-1, *over)}

    def _is_late(self, index: int) -> bool:
        return time.monotonic() - self.doubts.setdefault(index, time.monotonic()) >= _GONE_S


class Watcher:
    """Looks for ends as long as jobs are open; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._watched: dict[Path, _WatchedLaunch] = {}
        self._thread: threading.Thread | None = None

    def watch(self, launch: Launch, jobs: Mapping[int, Waiting]) -> None:
        """Settle these jobs, by the index of their run, once their runs have ended."""
        with self._lock:
            watched = self._watched.get(launch.folder)
            if watched is None:
                poller = Poller(launch=launch, context=build_python_context(), indices=())
                poller.asked_at -= poller.rhythm.first  # ends of long ago are seen at the first look
                watched = self._watched[launch.folder] = _WatchedLaunch(poller=poller)
            for index, job in jobs.items():
                watched.jobs.setdefault(index, []).append(job)
                watched.poller.settled.discard(index)
            watched.poller.indices = tuple(watched.jobs)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hpckit-watcher", daemon=True)
                self._thread.start()

    def update(self, *, force: bool = False) -> int:
        """Look at once, and with `force` ask Slurm; return how many runs have ended."""
        with self._lock:
            for watched in self._watched.values() if force else ():
                watched.poller.asked_at -= watched.poller.pause
            over = sum(watched.settle_ended_runs() for watched in self._watched.values())
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
