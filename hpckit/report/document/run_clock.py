"""What is on the x axis of a curve: steps, wall time, or productive time. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

from hpckit.model.goodput import TimePart, TimeSpan
from hpckit.values import dataclass


class CurveAxis(StrEnum):
    """The x axis of a curve. Wall time begins with the first attempt, restarts included."""

    step = "step"
    wall = "wall"
    productive = "productive"

    @property
    def words(self) -> str:
        """What stands at the axis."""
        return _TITLES[self]


_TITLES = {
    CurveAxis.step: "step",
    CurveAxis.wall: "wall time",
    CurveAxis.productive: "productive time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClock:
    """Turns moments, seconds since 1970, into seconds of a run."""

    begin_s: float
    begins: Sequence[float]
    ends: Sequence[float]
    before: Sequence[float]
    """The productive seconds before each stretch of productive time."""

    def wall_s(self, at_s: float) -> float:
        """Return the seconds since the first attempt began."""
        return max(at_s - self.begin_s, 0.0)

    def productive_s(self, at_s: float) -> float:
        """Return the productive seconds until then."""
        place = bisect_right(self.begins, at_s) - 1
        if place < 0:
            return 0.0
        return self.before[place] + min(at_s, self.ends[place]) - self.begins[place]


def run_clock(spans: Iterable[TimeSpan]) -> RunClock | None:
    """Return the clock of a run that did this; None if it never began."""
    begun = [one for one in spans if one.attempt > 0]
    if not begun:
        return None
    productive = [one for one in begun if one.part is TimePart.productive]
    before, total = list[float](), 0.0
    for one in productive:
        before.append(total)
        total += (one.end - one.begin).total_seconds()
    return RunClock(
        begin_s=begun[0].begin.timestamp(),
        begins=[one.begin.timestamp() for one in productive],
        ends=[one.end.timestamp() for one in productive],
        before=before,
    )


def moment_s(at: str) -> float | None:
    """Return a recorded time in seconds since 1970; None if it is none."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return None
