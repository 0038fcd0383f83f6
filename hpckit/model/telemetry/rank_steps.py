"""What the steps of one rank took, and what they waited for: measured by the rank itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """Some consecutive steps of one rank, from `first_step` on, and what their `seconds` went to.

    `data_s`: waiting for the next batch. `checkpoint_s`: standing still for a save. `waiting_s`:
    waiting for other ranks, at step boundaries and in collectives. `own_s`: its own work, without
    these waits for others and without saves; waiting for data counts as its own. Seconds are sums
    over the steps. `phases` are the seconds of the user's other `run.timed(NAME)`. `group` names
    the ranks that do the same work (a pipeline stage, for example): only these are compared with
    each other. `samples` are those of all ranks in these steps; None if `run.steps` was not told.
    """

    rank: int
    node: str = ""
    gpu: str | None = None
    group: str = ""
    first_step: int = 0
    steps: int
    samples: int | None = None
    seconds: float
    data_s: float | None = None
    checkpoint_s: float | None = None
    waiting_s: float | None = None
    own_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def working_s(self) -> float | None:
        """Seconds of its own work; derived from the waits if it was not measured."""
        if self.own_s is not None:
            return self.own_s
        if self.waiting_s is None:
            return None
        return max(self.seconds - self.waiting_s - (self.checkpoint_s or 0.0), 0.0)

    @property
    def computing_s(self) -> float | None:
        """Seconds of its own work without waiting for data; None if one of them is not known."""
        own = self.working_s
        return None if own is None or self.data_s is None else max(own - self.data_s, 0.0)
