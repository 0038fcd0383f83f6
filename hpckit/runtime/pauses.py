"""When this process did not run: its job was suspended, or its machine slept."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from hpckit.values import dataclass, field

LEAST_S = 4.0
"""Shorter gaps are those of a busy machine: Slurm's SchedulerTimeSlice is at least 5 s."""
_KEPT = 100

Pause = tuple[float, float]
"""From when to when, in seconds of the clock."""


@dataclass(slots=True, kw_only=True)
class PauseWatch:
    """Finds pauses of this process: gaps between two looks, which are to come every second.

    The clock goes on while the machine sleeps (CLOCK_BOOTTIME). Any thread may look.
    """

    clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    _looked_at: float | None = field(default=None, init=False)
    _found: deque[Pause] = field(default_factory=lambda: deque(maxlen=_KEPT), init=False)
    _new: list[Pause] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def look(self) -> None:
        """Look, also before anything is judged that came in while the process may have stood."""
        with self._lock:
            before, at = self._looked_at, self.clock()
            self._looked_at = at
            if before is not None and at - before >= LEAST_S:
                self._found.append((before, at))
                self._new.append((before, at))

    def new(self) -> list[Pause]:
        """Return the pauses that this has not returned yet."""
        self.look()
        found, self._new = self._new, []
        return found

    def paused_s(self, lasted_s: float) -> float:
        """Return how many of the last `lasted_s` seconds were a pause."""
        self.look()
        since = self.clock() - lasted_s
        return sum(max(end - max(begin, since), 0.0) for begin, end in tuple(self._found))


_OVERSLEPT_TICKS = 2.0
"""If a look comes this many times later than usual, the listener did not run meanwhile."""


@dataclass(slots=True, kw_only=True)
class SilenceTimer:
    """Silence of one speaker, checked every `tick_s` seconds by a monotonic clock."""

    tick_s: float
    silent_s: float = field(default=0.0, init=False)
    _looked_at: float | None = field(default=None, init=False)

    def heard(self) -> None:
        """Note that something was received."""
        self.silent_s = 0.0

    def look(self, at: float) -> float:
        """Return for how many seconds nothing was received; call it at every tick.

        A late look counts as two ticks: the listener may be stopped or short of time, and what it
        could not receive is no evidence about the speaker.
        """
        before, self._looked_at = self._looked_at, at
        if before is not None:
            self.silent_s += min(at - before, _OVERSLEPT_TICKS * self.tick_s)
        return self.silent_s
