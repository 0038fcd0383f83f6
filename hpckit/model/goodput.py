"""How a run spent its time: the parts of its wall time, its interruptions, and its ratios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from hpckit.model.failure import Cause
from hpckit.model.states import RoundAction
from hpckit.values import dataclass, field_names


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """Training stood still for `stall`; it took `duration` until the checkpoint was committed."""

    stall: timedelta
    duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """The latest step of an attempt, its round, and when it was reported; `total` if known."""

    round: int
    step: int
    at: datetime
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """One end of a round or attempt without completion.

    `round` is null if none had begun. `action` is what followed, null if unknown.
    """

    at: datetime
    attempt: int
    round: int | None
    cause: Cause
    message: str
    rank: int | None = None
    node: str | None = None
    step: int | None = None
    action: RoundAction | None = None

    @property
    def planned(self) -> bool:
        """Whether the interruption was announced, as preemption and the time limit are."""
        return self.cause.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """The wall time of a run, split into parts that do not overlap and leave nothing out.

    - productive: steps that were kept.
    - checkpoint: training stood still for a save.
    - start: attempts before the run's very first step.
    - restart: from trouble to the next round's first step, without waiting.
    - lost: steps that had to be repeated.
    - suspended: an attempt was alive, and none of its processes could run.
    - queue: submitted, with no attempt alive.
    - idle: ended, and not submitted again yet.
    """

    productive: timedelta = timedelta()
    checkpoint: timedelta = timedelta()
    start: timedelta = timedelta()
    restart: timedelta = timedelta()
    lost: timedelta = timedelta()
    suspended: timedelta = timedelta()
    queue: timedelta = timedelta()
    idle: timedelta = timedelta()

    @property
    def wall(self) -> timedelta:
        """The sum of the parts: from the first submission to the end, or to now."""
        return sum((getattr(self, name) for name in _PARTS), timedelta())

    @property
    def running(self) -> timedelta:
        """The time in which an attempt could run: wall without queue, idle and suspended.

        Slurm's elapsed time, for which sites charge, leaves suspensions out too.
        """
        return self.wall - self.queue - self.idle - self.suspended


_PARTS = field_names(TimeParts)


class TimePart(StrEnum):
    """The names of the parts of `TimeParts`, in the order in which people read them."""

    productive = "productive"
    checkpoint = "checkpoint"
    start = "start"
    restart = "restart"
    lost = "lost"
    suspended = "suspended"
    queue = "queue"
    idle = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A stretch of a run's wall time that belongs to one part.

    `attempt` is 0 before the first; `round` is null outside of rounds.
    """

    part: TimePart
    begin: datetime
    end: datetime
    attempt: int
    round: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """The inputs of the formula (planning.goodput.ettr) as measured on this run; null if unknown.

    - mtbf (M): running time per failure.
    - stall (w): standstill per save.
    - interval (dt): median training time between saves.
    - restart (u0): from the end of a round to the next first step, without waiting; the start-up
      time if nothing was restarted.
    - queue (q): wait per interruption.
    - detection (d): from trouble, as far as known, to the end of the round.
    - between_planned: running time per planned interruption.
    """

    mtbf: timedelta | None = None
    stall: timedelta | None = None
    interval: timedelta | None = None
    restart: timedelta | None = None
    queue: timedelta | None = None
    detection: timedelta | None = None
    between_planned: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The goodput of a run.

    `stepped` is whether its work can be seen: by steps, or by completion in its only round. If not,
    `lost_steps`, what rounds repeated, is null. `writing` is how long saves took until their commit, in
    parallel with training or not. `standstill` is how long no step has begun, if that is much longer than
    steps take, else null. `first_wait` is the part of `parts.queue` before the first attempt. `ettr_expected`
    is the result of the formula for `measured`, null if that lacks values.
    """

    parts: TimeParts
    stepped: bool
    attempts: int
    rounds: int
    lost_steps: int | None
    saves: int
    saved_bytes: int
    writing: timedelta
    interruptions: tuple[Interruption, ...]
    first_wait: timedelta
    measured: MeasuredTimes
    ettr_expected: float | None
    standstill: timedelta | None = None

    @property
    def goodput(self) -> float | None:
        """Productive share of the time in which the run was on its nodes; null if unknown."""
        return self._productive_share_of(self.parts.running)

    @property
    def ettr(self) -> float | None:
        """Productive share of the wall time, waiting included; null if unknown."""
        return self._productive_share_of(self.parts.wall)

    @property
    def ettr_since_first_step(self) -> float | None:
        """The ETTR without the first wait and the start-up, as the formula defines it."""
        return self._productive_share_of(self.parts.wall - self.first_wait - self.parts.start)

    @property
    def writing_share(self) -> float | None:
        """Share of the running time in which a checkpoint was being written; null without saves."""
        running = self.parts.running
        return min(self.writing / running, 1.0) if self.saves and running else None

    @property
    def failures(self) -> Mapping[Cause, int]:
        """How many interruptions were failures, by cause, most frequent first."""
        found = Counter(interruption.cause for interruption in self.interruptions if not interruption.planned)
        return dict(found.most_common())

    @property
    def planned(self) -> Mapping[Cause, int]:
        """How many interruptions were planned, by cause, most frequent first."""
        found = Counter(interruption.cause for interruption in self.interruptions if interruption.planned)
        return dict(found.most_common())

    def _productive_share_of(self, whole: timedelta) -> float | None:
        return self.parts.productive / whole if self.stepped and whole else None
