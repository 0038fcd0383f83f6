"""Nodes that are being drained: polled slowly.

What follows is decided in planning.recovery.boundary. The controller serves the whole cluster, so there is
one query for all nodes of an allocation, every few minutes, not at the same moment as other supervisors, and
less often if the controller is slow or away. A missing answer is not an error, because a run can do without.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping

from hpckit.runtime.threads import run_in_thread

_SLOW_S = 5.0
"""An answer that takes longer comes from a controller that is overloaded."""
_LONGEST_S = 3600.0
_SHORTEST_S = 1.0
_DOUBLINGS = 16

Drained = Mapping[str, str]
"""The nodes that are being drained, and the administrator's reason for each."""


async def poll_draining_nodes(
    interval_s: float, ask: Callable[[], Drained | None], is_wanted: Callable[[], bool]
) -> AsyncIterator[Drained]:
    """Yield the answers of polling, until cancelled; none if the interval is 0.

    `ask` blocks, and returns None if there is no answer. `is_wanted` is whether an answer would be useful.
    """
    bad = 0
    while interval_s:
        await asyncio.sleep(polling_pause_s(interval_s, bad))
        if not is_wanted():
            continue
        asked_at = time.monotonic()
        found = await run_in_thread(ask)
        slow = time.monotonic() - asked_at > _SLOW_S
        bad = bad + 1 if slow or found is None else 0
        if found is not None:
            yield found


def polling_pause_s(interval_s: float, bad: int, chance: float | None = None) -> float:
    """Return the pause before the next query: the interval, doubled for each recent bad answer.

    `chance`, between 0 and 1 (None: drawn), makes it up to a quarter shorter or longer.
    """
    chance = secrets.randbelow(1000) / 1000 if chance is None else chance
    longest = max(interval_s, _LONGEST_S)
    pause = min(max(interval_s, _SHORTEST_S) * 2.0 ** min(bad, _DOUBLINGS), longest)
    return pause * (0.75 + chance / 2)
