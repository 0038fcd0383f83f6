"""When a whole attempt stood still, as its job was suspended, or its machine slept.

Compares the supervisor's own pauses with those of agents: if it alone was stopped, ranks went on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from hpckit.model import events
from hpckit.runtime.clock import now
from hpckit.runtime.pauses import LEAST_S, Pause, PauseWatch
from hpckit.values import dataclass, field

_LOOK_S = 1.0
_AGENTS_S = 2.0
"""Agents notice a pause within a second, and their messages take their time."""


@dataclass(slots=True, kw_only=True)
class Suspensions:
    """Records the suspensions of one attempt."""

    record: Callable[[events.Event], None]
    pauses: PauseWatch = field(default_factory=PauseWatch)
    _of_agents: list[Pause] = field(default_factory=list, init=False)

    def hear(self, seconds: float) -> None:
        """Note that an agent has just found that it did not run for so long."""
        at = self.pauses.clock()
        self._of_agents.append((at - seconds, at))

    async def watch(self) -> None:
        """Look for pauses, and record those that an agent had too."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for own in self.pauses.new():
                await asyncio.sleep(_AGENTS_S)
                self.pauses.look()
                self._judge(own)

    def _judge(self, own: Pause) -> None:
        shared_s = max((_overlap_s(own, other) for other in self._of_agents), default=0.0)
        self._of_agents = [one for one in self._of_agents if one[1] > own[1] + _AGENTS_S]
        if shared_s >= LEAST_S / 2:
            at = now() - timedelta(seconds=self.pauses.clock() - own[1])
            self.record(events.Suspended(at=at, seconds=round(shared_s, 3)))


def _overlap_s(one: Pause, other: Pause) -> float:
    # What an agent says comes a second or more after the end of its pause.
    return min(one[1], other[1]) - max(one[0], other[0] - _AGENTS_S)
