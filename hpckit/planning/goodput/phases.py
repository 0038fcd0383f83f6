"""The phases of a run's time, and the parts of a round's time. Pure.

Times can always be added, whatever is in a record.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from hpckit.model.plain import is_within_limit
from hpckit.values import dataclass, field

ZERO = timedelta()
_LONGEST_S = 1e9
"""Longer recorded durations are cut to this, so that a damaged record does not cause an error."""


class Phase(Enum):
    """What a run is doing; `trouble` is between a failure and the end of its round."""

    queue = auto()
    idle = auto()
    start = auto()
    training = auto()
    trouble = auto()
    restart = auto()
    suspended = auto()


@dataclass(slots=True, kw_only=True)
class RoundTime:
    """A round: `trained` from its first step to trouble, `stepless` before, `stalled` for saves.

    `first` and `last` are the first and the last step known to have begun. `saves` are the moments
    of training at which saves were over, each with its standstill.
    """

    number: int
    nodes: tuple[str, ...] = ()
    first: int | None = None
    last: int | None = None
    trained: timedelta = ZERO
    troubled: timedelta = ZERO
    stalled: timedelta = ZERO
    stepless: dict[Phase, timedelta] = field(default_factory=dict)
    saved_at: timedelta = ZERO
    saves: list[tuple[timedelta, timedelta]] = field(default_factory=list)

    def record_first_step(self, step: int | None) -> None:
        """Record the first step."""
        if self.first is None:
            self.first = self.last = step

    def record_later_step(self, step: int | None) -> None:
        """Record a later step; it is ignored without a first one."""
        if step is not None and self.last is not None:
            self.last = max(step, self.last)

    @property
    def steps(self) -> int:
        """How many steps began."""
        return 0 if self.first is None or self.last is None else self.last - self.first + 1


@dataclass(slots=True, kw_only=True)
class Stretch:
    """Time that passed in one phase, and the attempt and the round that it belongs to."""

    phase: Phase
    begin: datetime
    end: datetime
    attempt: int
    round: RoundTime | None

    @property
    def length(self) -> timedelta:
        """How long it is."""
        return self.end - self.begin


def assume_utc(at: datetime) -> datetime:
    """Return a time that can be compared with others: one without a zone is taken as UTC."""
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def clamp_recorded_duration(seconds: float) -> timedelta:
    """Return a recorded duration; an impossible value counts as zero."""
    believable = is_within_limit(seconds) and seconds > 0
    return timedelta(seconds=min(seconds, _LONGEST_S)) if believable else ZERO
