"""Windows of steps in which ranks can be compared: the same steps of all of them. Pure.

Ranks report at different times and different numbers of steps. A window is a range of steps that
all of them have reported; a report that reaches over its edge is divided in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median, median_high

from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.values import dataclass, field, replace

_PATIENCE = 10
"""When half of the ranks are this many windows ahead, the others are not waited for any longer."""

_STEPS_KEPT = 1_000_000
"""A step further ahead than this is a damaged report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """The steps from `first_step` to before `end_step`, of the ranks that reported enough."""

    first_step: int
    end_step: int
    ranks: tuple[RankSteps, ...]


@dataclass(slots=True, kw_only=True)
class WindowBuilder:
    """Cuts reports of ranks into windows of `least_steps` steps or `least_s`, the longer.

    What ranks report later than their window was closed is left out.
    """

    least_s: float
    least_steps: int
    _pending: dict[int, list[RankSteps]] = field(default_factory=dict)
    _begin: int | None = None

    def add(self, reports: Iterable[RankSteps]) -> list[StepWindow]:
        """Take what was reported since last time, in any order; return the windows it completes."""
        for one in sorted(filter(believable, reports), key=_place):
            self._pending.setdefault(one.rank, []).append(one)
        found = []
        while (window := self._next()) is not None:
            found.append(window)
        return found

    def _next(self) -> StepWindow | None:
        live = {rank: some for rank, some in self._pending.items() if some}
        if not live:
            return None
        if self._begin is None:
            self._begin = min(some[0].first_step for some in live.values())
        length = self._length(list(live.values()))
        end = self._begin + length
        if not self._reached(end, length):
            return None
        window = StepWindow(first_step=self._begin, end_step=end, ranks=self._cut(end))
        self._begin = end
        self._forget(end)
        return window

    def _length(self, reports: Sequence[Sequence[RankSteps]]) -> int:
        """Return the steps of the next window, from the pace of what was reported for it."""
        paces = [sum(r.seconds for r in some) / sum(r.steps for r in some) for some in reports]
        return max(self.least_steps, math.ceil(self.least_s / median(paces)))

    def _reached(self, end: int, length: int) -> bool:
        assert self._begin is not None  # noqa: S101  # called once there is a beginning
        reach = [max(map(_end, some), default=self._begin) for some in self._pending.values()]
        return min(reach) >= end or median_high(reach) >= end + _PATIENCE * length

    def _cut(self, end: int) -> tuple[RankSteps, ...]:
        assert self._begin is not None  # noqa: S101  # likewise
        parts = (_between(self._pending[rank], self._begin, end) for rank in sorted(self._pending))
        length = end - self._begin
        return tuple(part for part in parts if part is not None and part.steps * 2 >= length)

    def _forget(self, end: int) -> None:
        for rank, some in self._pending.items():
            self._pending[rank] = [one for one in some if _end(one) > end]


def believable(report: RankSteps) -> bool:
    """Whether a report's numbers can be: finite, none negative, some steps in some time."""
    times = (report.data_s, report.checkpoint_s, report.waiting_s, report.own_s)
    known = [one for one in times if one is not None]
    return (
        0 < report.steps <= _STEPS_KEPT
        and report.first_step >= 0
        and 0 < report.seconds < math.inf
        and all(0 <= one < math.inf for one in known)
    )


def _place(one: RankSteps) -> tuple[int, int]:
    return one.rank, one.first_step


def _end(one: RankSteps) -> int:
    return one.first_step + one.steps


def _between(reports: Iterable[RankSteps], begin: int, end: int) -> RankSteps | None:
    """Return what these reports of one rank say about steps `begin` to before `end`, as one."""
    parts = [_part(one, begin, end) for one in reports]
    some = [one for one in parts if one is not None]
    if not some:
        return None
    return replace(
        some[-1],
        first_step=some[0].first_step,
        steps=sum(one.steps for one in some),
        seconds=sum(one.seconds for one in some),
        data_s=_sum(one.data_s for one in some),
        checkpoint_s=_sum(one.checkpoint_s for one in some),
        waiting_s=_sum(one.waiting_s for one in some),
        own_s=_sum(one.working_s for one in some),
        phases=_phases(some),
    )


def _part(one: RankSteps, begin: int, end: int) -> RankSteps | None:
    first, last = max(one.first_step, begin), min(_end(one), end)
    if last <= first:
        return None
    share = (last - first) / one.steps
    return replace(
        one,
        first_step=first,
        steps=last - first,
        seconds=one.seconds * share,
        data_s=_scaled(one.data_s, share),
        checkpoint_s=_scaled(one.checkpoint_s, share),
        waiting_s=_scaled(one.waiting_s, share),
        own_s=_scaled(one.own_s, share),
        phases={name: seconds * share for name, seconds in one.phases.items()},
    )


def _scaled(value: float | None, share: float) -> float | None:
    return None if value is None else value * share


def _phases(parts: Iterable[RankSteps]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.phases.items():
            sums[name] = sums.get(name, 0.0) + seconds
    return sums


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if one of them is unknown."""
    total = 0.0
    for one in values:
        if one is None:
            return None
        total += one
    return total
