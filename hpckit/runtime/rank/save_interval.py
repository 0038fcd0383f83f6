"""When a save is due. Pure but for the clock it is handed.

Responsible for the interval between saves; it must not save. By default the interval follows from
the measured cost of a save and the expected time between failures (Young 1974: the square root of
2 * cost * time between failures keeps the sum of saving and of lost work lowest). What a save costs
training is its stall; but what is written in the background costs the file system all the same, so
that at most a tenth of the time is spent writing. An interval that the user states is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from hpckit.model.launch import Checkpoint
from hpckit.model.save_cost import SaveCost

_SHORTEST = timedelta(seconds=5)
"""Also when a run's first save is due: it tells what a save costs, and whoever fails early, often
in the first minute, has something to go on from."""

WRITING = 0.1
"""The share of the time that is spent writing, at most: ten such runs keep a file system busy."""


def young(cost: timedelta, between_failures: timedelta) -> timedelta:
    """Return the best interval between saves of this cost (Young's first order)."""
    seconds = math.sqrt(2 * cost.total_seconds() * between_failures.total_seconds())
    return max(timedelta(seconds=seconds), _SHORTEST)


@dataclass(slots=True, kw_only=True)
class SaveInterval:
    """The saves of one rank. `clock` gives monotonic seconds.

    `known` is what the latest save cost: of this round, or handed over from an earlier one; null
    before the run's first.
    """

    settings: Checkpoint
    clock: Callable[[], float]
    known: SaveCost | None = None
    _at: float = field(init=False)
    _step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._at = self.clock()

    def began(self, step: int) -> None:
        """Count from this step, and from now."""
        self._step, self._at = step, self.clock()

    def due(self, step: int) -> bool:
        """Whether a save is due before this step."""
        if self.settings.interval_steps is not None:
            return step - self._step >= self.settings.interval_steps
        return self.clock() - self._at >= self.interval.total_seconds()

    def steps_left(self, step: int) -> int | None:
        """Return in how many steps a save is due, at least 1; None where steps do not count."""
        if self.settings.interval_steps is None:
            return None
        return max(self._step + self.settings.interval_steps - step, 1)

    @property
    def interval(self) -> timedelta:
        """The time from the beginning of a save to that of the next, where steps do not count."""
        if self.settings.interval_min is not None:
            return timedelta(minutes=self.settings.interval_min)
        between_failures = timedelta(hours=self.settings.mtbf_hours)
        if self.known is None:
            return _SHORTEST
        return max(young(self.known.stall, between_failures), self.known.duration / WRITING)

    @property
    def stated(self) -> bool:
        """Whether the user has said how often to save."""
        return not (self.settings.interval_steps is None and self.settings.interval_min is None)
