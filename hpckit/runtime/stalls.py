"""The judge of hangs: whether a rank has begun no step for longer than its run ever took. Pure.

Responsible for the limit, learned from the run's own steps, and for the judgement; it must not
read a clock (every time is given, in seconds of one monotonic clock) or end anybody.

What a false judgement costs is a restart, so whatever is not known is not judged: code that never
told of a step, a rank that is paused, and time in which the judge itself did not run.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

ENOUGH_GAPS = 20
"""So many gaps a rank must have told before its limit is learned from them."""

_REMEMBERED = 1000
_QUANTILE = 0.99
_LONGEST_FACTOR = 2.0
"""A silence that the run once came back from (an evaluation) may last twice as long next time."""
_OVERSLEPT_TICKS = 4
"""A judge that is called this much later than usual was itself stopped, with all it could hear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLimits:
    """How long a rank may be silent.

    At least `floor`, usually `factor` times what all but one in a hundred steps took, and `first`
    until that is known (compilation, warming caches).
    """

    floor: timedelta
    factor: float
    first: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A rank that has been silent for longer than its limit, since it began `step`."""

    rank: int
    step: int
    silent_for: timedelta
    limit: timedelta


@dataclass(slots=True)
class _Heard:
    """What is known of one rank. `at` is when its silence began.

    `learnable` is whether the gap that began with `step` says how long steps take: not the first
    one of a rank (compilation), nor one that held a pause.
    """

    step: int
    at: float
    gaps: int = 0
    learnable: bool = False


@dataclass(slots=True, kw_only=True)
class StepWatch:
    """The steps of some ranks of one round: of a node's, or of all.

    The gaps of all ranks are kept together, since ranks of one run step alike. A gap lies between
    two steps heard of, which may be more than one step apart.
    """

    limits: HangLimits
    _ranks: dict[int, _Heard] = field(default_factory=dict, init=False)
    _paused: set[int] = field(default_factory=set, init=False)
    _over: set[int] = field(default_factory=set, init=False)
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED), init=False)
    _longest: float = field(default=0.0, init=False)
    _judged_at: float | None = field(default=None, init=False)
    _tick: float = field(default=math.inf, init=False)

    def began(self, rank: int, step: int, at: float) -> None:
        """Hear that a rank began a step. A pause goes on until `resumed`."""
        if rank in self._over:
            return
        heard = self._ranks.get(rank)
        if heard is None:
            self._ranks[rank] = _Heard(step=step, at=at)
            return
        if heard.learnable:
            self._gaps.append(at - heard.at)
            self._longest = max(self._longest, at - heard.at)
            heard.gaps += 1
        heard.step, heard.at, heard.learnable = step, at, rank not in self._paused

    def ended(self, rank: int) -> None:
        """Hear that a rank is over; it is judged no more, whatever of it is heard late."""
        self._over.add(rank)
        self._ranks.pop(rank, None)

    def paused(self, rank: int) -> None:
        """Hear that a rank does something else than steps; it is not judged until `resumed`."""
        self._paused.add(rank)
        if rank in self._ranks:
            self._ranks[rank].learnable = False

    def resumed(self, rank: int, at: float) -> None:
        """Hear that a rank goes on with its steps; its silence counts from now."""
        if rank in self._paused and rank in self._ranks:
            self._ranks[rank].at = at
        self._paused.discard(rank)

    def stalled(self, now: float) -> Silence | None:
        """Return the rank that is silent for longest beyond its limit, None where none is.

        Call it at a steady pace: where one call comes much too late, the judge was stopped itself,
        and the time since the call before is left out of every rank's silence.
        """
        self._forgive(now)
        learned = self.learned_s()
        stalls = [
            self._stall(rank, now, learned) for rank in self._ranks if rank not in self._paused
        ]
        over = [stall for stall in stalls if stall.silent_for > stall.limit]
        return max(over, key=lambda stall: stall.silent_for, default=None)

    def _stall(self, rank: int, now: float, learned: float) -> Silence:
        """Return what it would be, were the limit passed."""
        heard = self._ranks[rank]
        limit = timedelta(seconds=learned)
        if heard.gaps < ENOUGH_GAPS:
            limit = max(limit, self.limits.first)
        silence = timedelta(seconds=now - heard.at)
        return Silence(rank=rank, step=heard.step, silent_for=silence, limit=limit)

    def _forgive(self, now: float) -> None:
        """Leave time in which the judge did not run out of account."""
        slept = 0.0 if self._judged_at is None else now - self._judged_at
        least = self.limits.floor.total_seconds() / 2
        if slept > max(least, _OVERSLEPT_TICKS * self._tick):
            for heard in self._ranks.values():
                heard.at, heard.learnable = min(now, heard.at + slept), False
        if slept > 0:
            self._tick = slept
        self._judged_at = now

    def learned_s(self) -> float:
        """Return how many seconds a rank may be silent, by what is known of this run's steps."""
        least = self.limits.floor.total_seconds()
        if not self._gaps:
            return least
        ordered = sorted(self._gaps)
        usual = ordered[math.ceil(_QUANTILE * len(ordered)) - 1]
        return max(least, self.limits.factor * usual, _LONGEST_FACTOR * self._longest)
