"""Lost replicas that come back, without a user's asking: from spares, or from a satellite job.

Growing costs a restart, so it is considered when a save has just been committed, and only if it
saves more than that. What is worth it is decided in planning.recovery.run_size.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from hpckit.model import events
from hpckit.model.counted import counted
from hpckit.planning.recovery.round_view import NewRound
from hpckit.planning.recovery.run_size import replicas_to_order, worth_growing
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.elastic.resizing import Resizing
from hpckit.runtime.supervisor.round import Round
from hpckit.runtime.threads import aside
from hpckit.values import dataclass, field

_SETTLED = timedelta(seconds=30)
"""How long a round must have run: nodes that are lost one after the other get no job each."""


@dataclass(slots=True, kw_only=True)
class Regrowth:
    """Brings a run back to its size.

    `order` submits a job for a number of replicas, less a number of idle nodes, and returns Slurm's
    id of it and its number of nodes; None: never.
    """

    resizing: Resizing
    order: Callable[[int, int], tuple[str, int] | None] | None
    _ordered: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    """By job, how many replicas it completes, and with how many nodes."""
    _refused: int = field(default=0, init=False)
    """How many replicas there was no job for; they are given up."""

    async def saved(self, duration: timedelta) -> None:
        """Consider growing, now that a save, which took so long, is committed."""
        round_ = self.resizing.round()
        if round_ is None or not round_.stepping:
            return
        view, size = round_.view(), self.resizing.size
        held, whole = len(view.members), size.replica_nodes
        action = self.resizing.judge(view)
        if isinstance(action, NewRound):
            worth = self._is_worth(round_, held, len(action.nodes), duration)
            if worth and not self.resizing.asked:
                self.resizing.resize()
            return
        missing = replicas_to_order(size, held // whole, self._coming() + self._refused)
        ready, after = missing > 0 and view.ran >= _SETTLED, (held // whole + missing) * whole
        if ready and self._is_worth(round_, held, after, duration):
            await self._submit(missing, len(self.resizing.idle_nodes(view)))

    def _coming(self) -> int:
        """Return how many replicas are to be completed by nodes that have yet to come."""
        arrivals = self.resizing.agents.arrivals
        orders = self._ordered.items()
        return sum(replicas for job, (replicas, nodes) in orders if arrivals[job] < nodes)

    @staticmethod
    def _is_worth(round_: Round, held: int, after: int, duration: timedelta) -> bool:
        left = round_.remaining
        return left is not None and worth_growing(held, after, left, round_.start_up + duration)

    async def _submit(self, replicas: int, idle: int) -> None:
        """Submit a job, whatever comes of it."""
        order = self.order
        if order is None:
            return
        lost = counted(replicas, "lost replica")
        submitted = await aside(lambda: order(replicas, idle))
        if submitted is None:
            self._refused += replicas
            words = f"no satellite job could be submitted to bring {lost} back"
        else:
            job, nodes = submitted
            self._ordered[job] = (replicas, nodes)
            self.resizing.unasked.add(job)
            words = f"satellite job {job} was submitted to bring {lost} back"
        self.resizing.record(events.Warned(at=now(), message=words))
