"""A figure of curves, before a library draws it, and what is on its x axis. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

from hpckit.features.reporting.document import CurveBand
from hpckit.model.goodput import TimePart, TimeSpan
from hpckit.values import dataclass


class CurveAxis(StrEnum):
    """The x axis of a curve. Wall time begins with the first attempt, restarts included."""

    step = "step"
    wall = "wall"
    productive = "productive"

    @property
    def axis_label(self) -> str:
        """What stands at the axis."""
        return "step" if self is CurveAxis.step else f"{self} time"


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


def build_run_clock(spans: Iterable[TimeSpan]) -> RunClock | None:
    """Return the clock of a run that did this; None if it never began."""
    begun = [span for span in spans if span.attempt > 0]
    if not begun:
        return None
    productive = [span for span in begun if span.part is TimePart.productive]
    before, total = list[float](), 0.0
    for one in productive:
        before.append(total)
        total += (one.end - one.begin).total_seconds()
    return RunClock(
        begin_s=begun[0].begin.timestamp(),
        begins=[span.begin.timestamp() for span in productive],
        ends=[span.end.timestamp() for span in productive],
        before=before,
    )


def parse_recorded_time(at: str) -> float | None:
    """Return a recorded time in seconds since 1970; None if it is none."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return None


_MINUTE_S = 60.0
_HOUR_S = 3600.0
_LONG = 3.0
"""A unit of time is used from this many of it on."""

XY = tuple[tuple[float, ...], tuple[float, ...]]
"""Places on the x axis, and values; NaN is a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLine:
    """A metric of one run: what holds, what was undone, and the first values after restarts."""

    name: str
    colour: int
    live: XY
    undone: tuple[XY, ...] = ()
    restarts: XY = ((), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePanel:
    """One metric; the `steps` of its band are places on the x axis, whatever that is."""

    metric: str
    lines: tuple[FigureLine, ...]
    band: CurveBand | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFigure:
    """Panels one below the other, with one x axis; `unit_s` are the seconds of its unit.

    `named_x` is what stands at an x axis that has neither steps nor times.
    """

    panels: tuple[FigurePanel, ...]
    axis: CurveAxis
    unit_s: float = 1.0
    named_x: str = ""

    @property
    def x_label(self) -> str:
        """What stands at the x axis."""
        if self.named_x or self.axis is CurveAxis.step:
            return self.named_x or self.axis.axis_label
        return f"{self.axis.axis_label} ({name_time_unit(self.unit_s)})"

    @property
    def legend_entries(self) -> tuple[tuple[str, int], ...]:
        """The names of all lines with their colours, each once."""
        return tuple(dict.fromkeys((line.name, line.colour) for panel in self.panels for line in panel.lines))


def choose_time_unit(longest_s: float) -> float:
    """Return the seconds of the unit that suits an axis of this length."""
    fitting = (unit for unit in (_HOUR_S, _MINUTE_S) if longest_s >= _LONG * unit)
    return next(fitting, 1.0)


def name_time_unit(seconds: float) -> str:
    """Return the name of a unit of `unit_s`."""
    return {_HOUR_S: "h", _MINUTE_S: "min"}.get(seconds, "s")


def smooth_values(values: Sequence[float], window: int) -> Sequence[float]:
    """Return the mean of each value and those before it, `window` in all; gaps stay gaps."""
    if window <= 1:
        return values
    latest: deque[float] = deque(maxlen=window)
    found: list[float] = []
    for value in values:
        if math.isfinite(value):
            latest.append(value)
            found.append(math.fsum(latest) / len(latest))
        else:
            found.append(math.nan)
    return found
