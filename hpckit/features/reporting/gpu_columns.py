"""Measurements over time, put into columns of the same length. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from hpckit.values import dataclass, field

COLUMNS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStretch:
    """What a GPU did between two moments, seconds since 1970; null is unknown.

    `slowed` is the share of the time in which heat or the power brake lowered its clocks.
    """

    node: str
    gpu: str
    begin_s: float
    end_s: float
    busy: float | None
    power_w: float | None
    temperature_c: float | None = None
    slowed: float | None = None


@dataclass(slots=True)
class _Mean:
    """A mean of values that were measured for different times."""

    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float) -> None:
        self.value += value * weight
        self.weight += weight

    @property
    def mean(self) -> float | None:
        return self.value / self.weight if self.weight else None


@dataclass(slots=True, kw_only=True)
class TimeColumns:
    """Collects readings into COLUMNS columns from `begin_s` to `end_s`."""

    begin_s: float
    end_s: float
    _busy: dict[tuple[str, str], dict[int, _Mean]] = field(default_factory=dict)
    _power: dict[tuple[str, str], dict[int, _Mean]] = field(default_factory=dict)
    _temperature: dict[tuple[str, str], dict[int, _Mean]] = field(default_factory=dict)
    _slowed: dict[tuple[str, str], dict[int, _Mean]] = field(default_factory=dict)

    def add(self, one: GpuStretch) -> None:
        """Take a reading into account, in every column that it touches."""
        key = (one.node, one.gpu)
        for column, weight in self._columns(one.begin_s, one.end_s):
            for kept, value in (
                (self._busy, one.busy),
                (self._power, one.power_w),
                (self._temperature, one.temperature_c),
                (self._slowed, one.slowed),
            ):
                if value is not None:
                    means = kept.setdefault(key, {})
                    means.setdefault(column, _Mean()).add(value, weight)

    @property
    def gpus(self) -> list[tuple[str, str]]:
        """Node and GPU of all that were measured."""
        return sorted({*self._busy, *self._power})

    def busy(self, gpu: tuple[str, str]) -> tuple[float | None, ...]:
        """Return the share of time in which a GPU was busy, by column."""
        return _row(self._busy.get(gpu, {})) or (None,) * COLUMNS

    def temperature_c(self, gpu: tuple[str, str]) -> tuple[float | None, ...]:
        """Return the temperature of a GPU, by column."""
        return _row(self._temperature.get(gpu, {}), digits=0)

    def slowed(self, gpu: tuple[str, str]) -> tuple[float | None, ...]:
        """Return the share of time in which heat or the power brake slowed a GPU, by column."""
        return _row(self._slowed.get(gpu, {}))

    def power_w(self) -> tuple[float | None, ...]:
        """Return the power of all GPUs together, by column."""
        sums: dict[int, float] = {}
        for row in self._power.values():
            for column, one in row.items():
                sums[column] = sums.get(column, 0.0) + (one.mean or 0.0)
        found = (sums.get(column) for column in range(COLUMNS))
        return tuple(None if one is None else round(one, 1) for one in found)

    def _columns(self, begin_s: float, end_s: float) -> Iterable[tuple[int, float]]:
        width = (self.end_s - self.begin_s) / COLUMNS
        if width <= 0 or end_s <= begin_s:
            return
        first = max(int((begin_s - self.begin_s) / width), 0)
        last = min(int((end_s - self.begin_s) / width), COLUMNS - 1)
        for column in range(first, last + 1):
            low = self.begin_s + column * width
            weight = min(end_s, low + width) - max(begin_s, low)
            if weight > 0:
                yield column, weight


def _row(means: Mapping[int, _Mean], digits: int = 3) -> tuple[float | None, ...]:
    """Return the means by column; empty if there is none."""
    if not means:
        return ()
    found = (means[column].mean if column in means else None for column in range(COLUMNS))
    return tuple(None if one is None else round(one, digits) for one in found)


def seconds(at: datetime) -> float:
    """Return a moment in seconds since 1970."""
    return at.timestamp()
