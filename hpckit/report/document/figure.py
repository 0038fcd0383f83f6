"""A figure of curves, before a library draws it. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from hpckit.report.document.run_clock import CurveAxis
from hpckit.values import dataclass

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
class FigureBand:
    """Where the curves of the other runs are: the tenth, the half and nine tenths of them."""

    runs: int
    x: tuple[float, ...]
    low: tuple[float, ...]
    middle: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePanel:
    """One metric."""

    metric: str
    lines: tuple[FigureLine, ...]
    band: FigureBand | None = None


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
            return self.named_x or "step"
        return f"{self.axis.words} ({unit_name(self.unit_s)})"

    @property
    def entries(self) -> tuple[tuple[str, int], ...]:
        """The names of all lines with their colours, each once."""
        return tuple(
            dict.fromkeys((one.name, one.colour) for panel in self.panels for one in panel.lines)
        )


def unit_s(longest_s: float) -> float:
    """Return the seconds of the unit that suits an axis of this length."""
    fitting = (unit for unit in (_HOUR_S, _MINUTE_S) if longest_s >= _LONG * unit)
    return next(fitting, 1.0)


def unit_name(seconds: float) -> str:
    """Return the name of a unit of `unit_s`."""
    return {_HOUR_S: "h", _MINUTE_S: "min"}.get(seconds, "s")


def smoothed(values: Sequence[float], window: int) -> Sequence[float]:
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
