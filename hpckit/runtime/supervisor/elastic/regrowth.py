"""Lost replicas that come back, without a user's asking: from spares, or from a satellite job.

Growing costs a restart, so it is considered when a save has just been committed, and only if it
saves more than that. What is worth it is decided in planning.recovery.run_size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from hpckit.model import events
from hpckit.model.counted import counted
from hpckit.planning.recovery.actions import NewRound
from hpckit.planning.recovery.run_size import replicas_to_order, worth_growing
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.elastic.resizing import Resizing
from hpckit.runtime.supervisor.round import Round
from hpckit.runtime.threads import aside

_SETTLED = timedelta(seconds=30)
"""How long a round must have run: nodes that are lost one after the other get no job each."""


@dataclass(slots=True, kw_only=True)
class Regrowth:
    """Brings a run back to its size.

    `order` submits a job for so many replicas, less so many idle nodes; None: never.
    """

    resizing: Resizing
    order: Callable[[int, int], str | None] | None
    _ordered: int = field(default=0, init=False)
    _completed_by: frozenset[str] = field(default=frozenset(), init=False)
    """Nodes that stood idle when a job was submitted, and complete a replica with its nodes."""

    async def saved(self, duration: timedelta) -> None:
        """Consider growing, now that a save, which took so long, is committed."""
        round_ = self.resizing.round()
        if round_ is None or not round_.stepping or self.resizing.asked:
            return
        view, size = round_.view(), self.resizing.size
        held, whole = len(view.members), size.replica_nodes
        action = self.resizing.judge(view)
        nodes = action.nodes if isinstance(action, NewRound) else view.members
        if self._is_worth(round_, held, len(nodes), duration):
            self.resizing.resize()
            return
        self._completed_by -= {*view.members}
        if not self._completed_by <= {*view.standing}:
            # The nodes of the job that was submitted complete no replica any more.
            self._ordered, self._completed_by = max(0, self._ordered - 1), frozenset()
        missing = replicas_to_order(size, held // whole, self._ordered)
        ready, after = missing > 0 and view.ran >= _SETTLED, (held // whole + missing) * whole
        if ready and self._is_worth(round_, held, after, duration):
            await self._submit(missing, self.resizing.idle_nodes(view))

    @staticmethod
    def _is_worth(round_: Round, held: int, after: int, duration: timedelta) -> bool:
        left = round_.remaining
        return left is not None and worth_growing(held, after, left, round_.start_up + duration)

    async def _submit(self, replicas: int, idle: Sequence[str]) -> None:
        """Submit a job, once for each replica, whatever comes of it."""
        order = self.order
        if order is None:
            return
        self._ordered += replicas
        self._completed_by |= {*idle}
        job = await aside(lambda: order(replicas, len(idle)))
        lost = counted(replicas, "lost replica")
        words = f"satellite job {job} was submitted to bring {lost} back"
        if job is None:
            words = f"no satellite job could be submitted to bring {lost} back"
        else:
            self.resizing.unasked.add(job)
        self.resizing.record(events.Warned(at=now(), message=words))
