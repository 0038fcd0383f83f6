"""Nodes that are being drained: polled slowly, and reported once.

Decides when to ask, and which parts of an answer are news; what follows is decided in
planning.recovery.boundary. The controller serves the whole cluster, so there is one query for all
nodes of an allocation, every few minutes, not at the same moment as other supervisors, and less
often if the controller is slow or away. A missing answer is not an error, because a run can do
without.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from hpckit.model.events import Event, NodeDraining, Warned
from hpckit.model.states import DrainAction
from hpckit.planning.recovery.round_view import Action, NewRound, Stay
from hpckit.runtime.clock import now
from hpckit.runtime.threads import aside
from hpckit.values import dataclass, field

_SLOW_S = 5.0
"""An answer that takes longer comes from a controller that is overloaded."""
_LONGEST_S = 3600.0
_SHORTEST_S = 1.0
_DOUBLINGS = 16

Drained = Mapping[str, str]
"""The nodes that are being drained, and the administrator's reason for each."""


async def poll_drained(
    interval_s: float,
    ask: Callable[[], Drained | None],
    wanted: Callable[[], bool],
    hear: Callable[[Drained], Awaitable[None]],
) -> None:
    """Poll until cancelled; never if the interval is 0.

    `ask` blocks, and returns None if there is no answer. `wanted` is whether an answer would be
    useful; `hear` processes it.
    """
    bad = 0
    while interval_s:
        await asyncio.sleep(pause_s(interval_s, bad, secrets.randbelow(1000) / 1000))
        if not wanted():
            continue
        asked_at = time.monotonic()
        found = await aside(ask)
        slow = time.monotonic() - asked_at > _SLOW_S
        bad = bad + 1 if slow or found is None else 0
        if found is not None:
            await hear(found)


def pause_s(interval_s: float, bad: int, chance: float) -> float:
    """Return the pause before the next query: the interval, doubled for each recent bad answer.

    `chance`, between 0 and 1, makes it up to a quarter shorter or longer.
    """
    longest = max(interval_s, _LONGEST_S)
    pause = min(max(interval_s, _SHORTEST_S) * 2.0 ** min(bad, _DOUBLINGS), longest)
    return pause * (0.75 + chance / 2)


@dataclass(slots=True)
class DrainNews:
    """What is known of drained nodes, and which of it was already reported."""

    nodes: Drained = field(default_factory=dict, init=False)
    _told: dict[str, DrainAction] = field(default_factory=dict, init=False)

    def take(self, found: Drained) -> None:
        """Process an answer; a node that was in use again is news when it is drained once more."""
        self.nodes = found
        self._told = {node: taken for node, taken in self._told.items() if node in found}

    def news(self, members: Sequence[str], action: Action | Stay) -> Iterator[Event]:
        """Yield what to record of a round's drained nodes, unless the same was already reported."""
        taken = _drain_action(action)
        for node in members:
            if node not in self.nodes or self._told.get(node) is taken:
                continue
            self._told[node] = taken
            reason = self.nodes[node]
            yield NodeDraining(at=now(), node=node, reason=reason, action=taken)
            if isinstance(action, Stay):
                why = f" ({reason})" if reason else ""
                message = f"{node} is being drained{why}; the run continues there: {action.because}"
                yield Warned(at=now(), message=message)


def _drain_action(action: Action | Stay) -> DrainAction:
    if isinstance(action, Stay):
        return DrainAction.stay
    return DrainAction.move if isinstance(action, NewRound) else DrainAction.leave
