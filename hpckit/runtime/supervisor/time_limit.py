"""The current time limit of an attempt: requested now and then from the scheduler, and watched.

Decides when to ask and when ranks have to leave; it does not notify them. A limit can be changed,
and a suspended job gets its time back, so the limit is requested again: seldom, not at the same
moment as other supervisors, and always before leaving because of it. Between two answers the
monotonic clock counts, never this node's time of day.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from datetime import timedelta

from hpckit.model.cluster.allocation import AttemptLimits
from hpckit.runtime.supervisor.deadline import Deadline
from hpckit.runtime.supervisor.drain_poll import pause_s
from hpckit.runtime.tasks import done_within
from hpckit.runtime.threads import aside
from hpckit.values import dataclass, field

_INTERVAL_S = 600.0
_UNKNOWN_S = 60.0
"""Interval until there has been an answer."""
_TICK_S = 1.0
_LAST_ANSWER_S = 3.0
"""How long leaving waits for the last answer: it comes off the time to save."""
_FRESH_S = 30.0
"""How long an answer is as good as a new one."""


@dataclass(slots=True, kw_only=True)
class TimeLimit:
    """Watches the limit of one attempt. `ask` blocks; it returns None if there is no answer."""

    deadline: Deadline
    ask: Callable[[], AttemptLimits | None]
    _answered_at: float | None = field(default=None, init=False)

    async def learn(self) -> bool:
        """Ask; return whether there was an answer."""
        limits = await aside(self.ask)
        if limits is not None:
            self.deadline.limits, self.deadline.known = limits, True
            self._answered_at = time.monotonic()
        return limits is not None

    async def watch(self, usual_step: Callable[[], timedelta | None]) -> None:
        """Return when ranks have to leave; `usual_step` returns None while they do not loop."""
        asking = asyncio.create_task(self._ask_again())
        try:
            while not await self._is_time(usual_step()):  # noqa: ASYNC110  # time is waited for
                await asyncio.sleep(_TICK_S)
        finally:
            asking.cancel()

    async def _ask_again(self) -> None:
        bad = 0
        while True:
            interval_s = _UNKNOWN_S if self._answered_at is None else _INTERVAL_S
            await asyncio.sleep(pause_s(interval_s, bad, secrets.randbelow(1000) / 1000))
            bad = 0 if await self.learn() else bad + 1

    async def _is_time(self, usual_step: timedelta | None) -> bool:
        if usual_step is None or not self._past(usual_step):
            return False
        asked = self._answered_at
        if asked is None or time.monotonic() - asked > _FRESH_S:
            await done_within(_LAST_ANSWER_S, self.learn())
        return self._past(usual_step)

    def _past(self, usual_step: timedelta) -> bool:
        leave_at = self.deadline.leave_at(usual_step)
        return leave_at is not None and time.monotonic() >= leave_at
