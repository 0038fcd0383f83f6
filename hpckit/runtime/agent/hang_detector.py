"""The hang detector: does a rank stand still for longer than its run ever did? Pure.

Learns the limit from the run's own steps, and judges. It reads no clock: every time is given, in
seconds of one monotonic clock.

A false judgement costs a restart, so nothing unknown is judged: code that is not known to loop over
steps, a rank that is paused, and time in which the detector itself did not run.
"""

from __future__ import annotations

import math
from collections import deque

from hpckit.model.failure import StalledRank
from hpckit.values import dataclass, field

ENOUGH_STEPS = 20
"""Number of steps after which the limit of a rank is learned from them; the first do not count."""

_REMEMBERED = 1000
_QUANTILE = 0.99
_LONGEST_FACTOR = 2.0
"""A silence from which the run once recovered (an evaluation) may take twice as long next time."""
_OVERSLEPT_TICKS = 4
"""A detector called this many ticks late was itself stopped, and missed messages meanwhile."""


@dataclass(slots=True)
class _Heard:
    """What is known of one rank. `at` is when its silence began; `steps` are those learned from.

    `learnable` is whether the gap that began with `step` shows how long steps take: not the first
    gap of a rank (compilation), nor one with a pause. `working` is whether the rank does something
    other than a step: before the first one, or (`over`) after the last.
    """

    step: int | None
    at: float
    steps: int = 0
    learnable: bool = False
    first: bool = True
    working: bool = False
    over: bool = False


@dataclass(slots=True, kw_only=True)
class StepWatch:
    """The steps of some ranks of one round: of one node's, or of all.

    The gaps of all ranks are kept together, because ranks of one run step at the same speed. A gap
    is the time between two reported steps, which may be more than one step apart.

    A rank may be silent for at least `floor_s`, usually for `factor` times the 99th percentile of
    the run's step times. `first_s` applies until that is known (compilation, warming caches),
    before the first step and after the last one; 0: not judged then.
    """

    floor_s: float
    factor: float
    first_s: float
    _ranks: dict[int, _Heard] = field(default_factory=dict, init=False)
    _paused: set[int] = field(default_factory=set, init=False)
    _ended: set[int] = field(default_factory=set, init=False)
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED), init=False)
    _longest: float = field(default=0.0, init=False)
    _first_gap: float = field(default=0.0, init=False)
    _steps: int = field(default=0, init=False)
    _known: bool = field(default=False, init=False)
    _judged_at: float | None = field(default=None, init=False)
    _tick: float = field(default=math.inf, init=False)

    def take_over_learned_step_gaps(self, earlier: StepWatch) -> None:
        """Take over what was learned in an earlier round of the same run."""
        self._gaps.extend(earlier._gaps)
        self._longest, self._first_gap = earlier._longest, earlier._first_gap
        self._steps = earlier._steps
        self._known = self._steps >= ENOUGH_STEPS

    @property
    def has_seen_steps(self) -> bool:
        """Whether any step has been reported, in this round or an earlier one."""
        return bool(self._gaps) or any(heard.step is not None for heard in self._ranks.values())

    @property
    def watches_steps(self) -> bool:
        """Whether ranks are known to loop over steps, or to be about to."""
        return bool(self._ranks) or self.has_seen_steps

    def note_work_outside_steps(self, rank: int, at: float, *, over: bool = False) -> None:
        """Note that a rank that loops over steps works outside a step: before, or `over`, after."""
        if rank in self._ended:
            return
        heard = self._ranks.get(rank)
        step = None if heard is None else heard.step
        self._ranks[rank] = _Heard(step=step, at=at, working=True, over=over)

    def note_step_begin(self, rank: int, step: int, at: float) -> None:
        """Note that a rank began a step. A pause lasts until `resumed`."""
        if rank in self._ended:
            return
        heard = self._ranks.get(rank)
        if heard is None or heard.working:
            self._ranks[rank] = _Heard(step=step, at=at)
            return
        if heard.learnable:
            self._gaps.append(at - heard.at)
            self._longest = max(self._longest, at - heard.at)
            # A gap may be of many short steps: none of them took longer than the gap.
            done = max(1, step - (heard.step or 0))
            heard.steps += done
            self._steps += done
        elif heard.first and rank not in self._paused:
            self._first_gap = max(self._first_gap, at - heard.at)
        heard.step, heard.at, heard.first = step, at, False
        heard.learnable = rank not in self._paused

    def note_rank_end(self, rank: int) -> None:
        """Note that a rank has ended; it is no longer judged, whatever late messages say."""
        self._ended.add(rank)
        self._ranks.pop(rank, None)

    def note_pause(self, rank: int) -> None:
        """Note that a rank does something other than steps; it is not judged until `resumed`."""
        self._paused.add(rank)
        if rank in self._ranks:
            self._ranks[rank].learnable = False

    def note_resume(self, rank: int, at: float) -> None:
        """Note that a rank continues with its steps; its silence counts from now."""
        if rank in self._paused and rank in self._ranks:
            self._ranks[rank].at = at
        self._paused.discard(rank)

    def find_stalled_rank(self, now: float) -> StalledRank | None:
        """Return the rank that is silent for longest beyond its limit; None if there is none.

        Call it at a steady interval: if one call comes much too late, the detector itself was
        stopped, and the time since the previous call is left out of every rank's silence.
        """
        self._exclude_own_pause_from_silence(now)
        learned = self.learned_silence_limit_s()
        stalls = [
            (now - heard.at, rank, self._choose_silence_limit(heard, learned))
            for rank, heard in self._ranks.items()
            if rank not in self._paused
        ]
        over = [stall for stall in stalls if stall[0] > stall[2]]
        if not over:
            return None
        silent_s, rank, limit_s = max(over)
        heard = self._ranks[rank]
        return StalledRank(rank=rank, step=heard.step, silent_s=silent_s, limit_s=limit_s, over=heard.over)

    def _choose_silence_limit(self, heard: _Heard, learned: float) -> float:
        first = max(learned, self.first_s or math.inf)
        if heard.working:
            return first
        if heard.steps >= ENOUGH_STEPS:
            return learned
        if not self._known:
            return first
        # A restart compiles again, and may take as long as the first gap did before.
        return max(learned, _LONGEST_FACTOR * self._first_gap) if heard.first else learned

    def _exclude_own_pause_from_silence(self, now: float) -> None:
        slept = 0.0 if self._judged_at is None else now - self._judged_at
        if slept > max(self.floor_s / 2, _OVERSLEPT_TICKS * self._tick):
            for heard in self._ranks.values():
                heard.at, heard.learnable = min(now, heard.at + slept), False
        if slept > 0:
            self._tick = slept
        self._judged_at = now

    def learned_silence_limit_s(self) -> float:
        """Return how many seconds a rank may be silent, from what is known of this run's steps."""
        if not self._gaps:
            return self.floor_s
        return max(self.floor_s, self.factor * self.usual_step_gap_s(), _LONGEST_FACTOR * self._longest)

    def usual_step_gap_s(self) -> float:
        """Return the 99th percentile of the gaps, in seconds; 0 before any is known.

        Compilation and pauses are not among the gaps.
        """
        if not self._gaps:
            return 0.0
        ordered = sorted(self._gaps)
        return ordered[math.ceil(_QUANTILE * len(ordered)) - 1]
