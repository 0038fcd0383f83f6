"""Decides when a save is due. Pure except for the clock it is given.

By default the interval follows from the measured cost of a save and the expected time between
failures (Young 1974: the square root of 2 * cost * time between failures minimises the sum of
saving and of lost work). The cost of a save to training is its stall. Writing in the background
still loads the file system, so at most a tenth of the time is spent writing. An interval that the
user sets is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta

from hpckit.model.goodput import SaveCost
from hpckit.model.launch import Checkpoint
from hpckit.values import dataclass, field

_SHORTEST = timedelta(seconds=5)
"""Shortest interval, and the time of a run's first save.

The first save measures what a save costs, and gives runs that fail early, often in the first
minute, something to continue from.
"""

WRITING = 0.1
"""Maximum share of the time spent writing: ten such runs keep a file system busy."""


def young(cost: timedelta, between_failures: timedelta) -> timedelta:
    """Return the best interval between saves of this cost (Young's first order)."""
    seconds = math.sqrt(2 * cost.total_seconds() * between_failures.total_seconds())
    return max(timedelta(seconds=seconds), _SHORTEST)


@dataclass(slots=True, kw_only=True)
class SaveInterval:
    """The saves of one rank. `clock` gives monotonic seconds.

    `known` is the cost of the latest save, of this round or passed on from an earlier one; None
    before the run's first save.
    """

    settings: Checkpoint
    clock: Callable[[], float] = time.monotonic
    known: SaveCost | None = None
    _at: float = field(init=False)
    _step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._at = self.clock()

    def began(self, step: int) -> None:
        """Restart the interval at this step and at the current time."""
        self._step, self._at = step, self.clock()

    def due(self, step: int) -> bool:
        """Return whether a save is due before this step."""
        if self.settings.interval_steps is not None:
            return step - self._step >= self.settings.interval_steps
        return self.clock() - self._at >= self.interval.total_seconds()

    def steps_left(self, step: int) -> int | None:
        """Return in how many steps a save is due, at least 1; None if the interval is a time."""
        if self.settings.interval_steps is None:
            return None
        return max(self._step + self.settings.interval_steps - step, 1)

    @property
    def interval(self) -> timedelta:
        """Time between the starts of two saves, if the interval is not set in steps."""
        if self.settings.interval_min is not None:
            return timedelta(minutes=self.settings.interval_min)
        between_failures = timedelta(hours=self.settings.mtbf_hours)
        if self.known is None:
            return _SHORTEST
        return max(young(self.known.stall, between_failures), self.known.duration / WRITING)

    @property
    def stated(self) -> bool:
        """Whether the user has set how often to save."""
        return not (self.settings.interval_steps is None and self.settings.interval_min is None)
