"""What the steps of one rank took, and what they waited for: measured by the rank itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from hpckit.values import dataclass, field

_Number = TypeVar("_Number", int, float)

DATA_PHASE = "data"
"""The phase in which a rank waits for its next batch."""


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

    def __add__(self, later: RankSteps) -> RankSteps:
        """Return both reports of a rank as one; unknown is what one of them does not know."""
        names = dict.fromkeys((*self.phases, *later.phases))
        return RankSteps(
            rank=self.rank,
            node=later.node,
            gpu=later.gpu,
            group=self.group,
            first_step=min(self.first_step, later.first_step),
            steps=self.steps + later.steps,
            samples=_add_if_known(self.samples, later.samples),
            seconds=self.seconds + later.seconds,
            data_s=_add_if_known(self.data_s, later.data_s),
            checkpoint_s=_add_if_known(self.checkpoint_s, later.checkpoint_s),
            waiting_s=_add_if_known(self.waiting_s, later.waiting_s),
            own_s=_add_if_known(self.own_s, later.own_s),
            phases={name: self.phases.get(name, 0.0) + later.phases.get(name, 0.0) for name in names},
        )


def _add_if_known(first: _Number | None, second: _Number | None) -> _Number | None:
    return None if first is None or second is None else first + second


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPhase:
    """What the user's code measured by `run.timed(NAME)`: seconds a step, and its share of a step.

    Phases may overlap, so that their shares need not add up.
    """

    name: str
    step_s: float
    share: float


def average_timed_phases(ranks: Iterable[RankSteps]) -> tuple[TimedPhase, ...]:
    """Return the phases of these ranks' steps, means over all of them, the longest first."""
    some = [rank for rank in ranks if rank.steps > 0 and rank.seconds > 0]
    steps, seconds = sum(part.steps for part in some), sum(part.seconds for part in some)
    names = dict.fromkeys(name for part in some for name in part.phases)
    sums = {name: sum(part.phases.get(name, 0.0) for part in some) for name in names}
    found = [
        TimedPhase(name=name, step_s=spent / steps, share=spent / seconds) for name, spent in sums.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.step_s))
