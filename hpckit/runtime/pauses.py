"""When this process, or a whole attempt, did not run: its job was suspended, or its machine slept.

A supervisor compares its own pauses with those of agents: if it alone was stopped, ranks continued.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from hpckit.model import events
from hpckit.runtime.clock import now
from hpckit.values import dataclass, field

LEAST_S = 4.0
"""Shorter gaps are those of a busy machine: Slurm's SchedulerTimeSlice is at least 5 s."""
_KEPT = 100
_LOOK_S = 1.0
_AGENTS_S = 2.0
"""Agents notice a pause within a second, and their messages take their time."""

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

    def detect_process_pause(self) -> None:
        """Look for a pause; also before judging what came in while the process may have stopped."""
        with self._lock:
            before, at = self._looked_at, self.clock()
            self._looked_at = at
            if before is not None and at - before >= LEAST_S:
                self._found.append((before, at))
                self._new.append((before, at))

    def pop_new_pauses(self) -> list[Pause]:
        """Return the pauses that this has not returned yet."""
        self.detect_process_pause()
        found, self._new = self._new, []
        return found

    def count_paused_seconds(self, lasted_s: float) -> float:
        """Return how many of the last `lasted_s` seconds were a pause."""
        self.detect_process_pause()
        since = self.clock() - lasted_s
        return sum(max(end - max(begin, since), 0.0) for begin, end in tuple(self._found))


@dataclass(slots=True, kw_only=True)
class Suspensions:
    """Records the suspensions of one attempt."""

    record: Callable[[events.Event], None]
    pauses: PauseWatch = field(default_factory=PauseWatch)
    _of_agents: list[Pause] = field(default_factory=list, init=False)

    def record_agent_pause(self, seconds: float) -> None:
        """Note that an agent has just found that it did not run for this many seconds."""
        at = self.pauses.clock()
        self._of_agents.append((at - seconds, at))

    async def record_pauses_agents_shared(self) -> None:
        """Look for pauses, and record those that an agent had too."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for own in self.pauses.pop_new_pauses():
                await asyncio.sleep(_AGENTS_S)
                self.pauses.detect_process_pause()
                self._record_pause_if_agents_had_it(own)

    def _record_pause_if_agents_had_it(self, own: Pause) -> None:
        # What an agent says comes a second or more after the end of its pause.
        others = ((begin - _AGENTS_S, end) for begin, end in self._of_agents)
        shared = (min(own[1], end) - max(own[0], begin) for begin, end in others)
        shared_s = max(shared, default=0.0)
        self._of_agents = [pause for pause in self._of_agents if pause[1] > own[1] + _AGENTS_S]
        if shared_s >= LEAST_S / 2:
            at = now() - timedelta(seconds=self.pauses.clock() - own[1])
            self.record(events.Suspended(at=at, seconds=round(shared_s, 3)))


_OVERSLEPT_TICKS = 2.0
"""If a look comes this many times later than usual, the listener did not run meanwhile."""


@dataclass(slots=True, kw_only=True)
class SilenceTimer:
    """Silence of one speaker, checked every `tick_s` seconds by a monotonic clock."""

    tick_s: float
    silent_s: float = field(default=0.0, init=False)
    _looked_at: float | None = field(default=None, init=False)

    def reset_on_message(self) -> None:
        """Note that something was received."""
        self.silent_s = 0.0

    def measure_silence(self, at: float) -> float:
        """Return for how many seconds nothing was received; call it at every tick.

        A late look counts as two ticks: the listener may be stopped or short of time, and what it
        could not receive is no evidence about the speaker.
        """
        before, self._looked_at = self._looked_at, at
        if before is not None:
            self.silent_s += min(at - before, _OVERSLEPT_TICKS * self.tick_s)
        return self.silent_s
