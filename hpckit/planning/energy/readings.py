"""The power of one GPU over time, from readings of its energy counter. Pure.

A counter that went back was reset with the driver. Where it says nothing the energy is estimated
as power times time. Times are seconds of one clock (since the epoch), energy joules.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpckit.model.telemetry.energy import EnergySum


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReading:
    """What a GPU (uuid) said at a moment: its energy counter, and its power; None if unknown.

    `counter_j` counts from when the driver was loaded (NVML's total energy consumption).
    """

    gpu: str
    at_s: float
    counter_j: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerStretch:
    """A time in which a GPU's mean power is known: `measured` by its counter, or estimated."""

    begin_s: float
    end_s: float
    watts: float
    measured: bool


def total(parts: Iterable[EnergySum]) -> EnergySum:
    """Return the sum of some energies."""
    return sum(parts, EnergySum())


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCurve:
    """The power of one GPU: stretches in order, without overlap, and its mean for all other times.

    `mean_w` is None if nothing is known of this GPU.
    """

    stretches: tuple[PowerStretch, ...] = ()
    mean_w: float | None = None

    def energy(self, begin_s: float, end_s: float) -> EnergySum:
        """Return the energy between two moments; the sum of both parts if the time is divided."""
        if end_s <= begin_s:
            return EnergySum()
        total_j = estimated_j = covered_s = 0.0
        for one in self._overlapping(begin_s, end_s):
            part_s = min(one.end_s, end_s) - max(one.begin_s, begin_s)
            if part_s > 0:
                covered_s += part_s
                total_j += part_s * one.watts
                estimated_j += 0.0 if one.measured else part_s * one.watts
        whole_s = end_s - begin_s
        left_s = max(whole_s - covered_s, 0.0)
        if self.mean_w is None:
            return EnergySum(gpu_s=whole_s, unknown_s=left_s)
        guessed_j = left_s * self.mean_w
        return EnergySum(
            total_j=total_j + guessed_j, estimated_j=estimated_j + guessed_j, gpu_s=whole_s
        )

    def _overlapping(self, begin_s: float, end_s: float) -> Sequence[PowerStretch]:
        first = bisect_right(self.stretches, begin_s, key=lambda one: one.end_s)
        last = bisect_right(self.stretches, end_s, key=lambda one: one.begin_s)
        return self.stretches[first:last]


def power_curves(readings: Iterable[EnergyReading]) -> dict[str, PowerCurve]:
    """Return the curve of each GPU. Several ranks may have read the same GPU, in any order."""
    by_gpu: dict[str, list[EnergyReading]] = {}
    for one in readings:
        if math.isfinite(one.at_s):
            by_gpu.setdefault(one.gpu, []).append(_believable(one))
    return {gpu: _curve(_in_order(some)) for gpu, some in sorted(by_gpu.items())}


def _curve(readings: Sequence[EnergyReading]) -> PowerCurve:
    """Return the curve of one GPU: by its counter, and between counters that tell nothing by power.

    A reading without a counter inside a stretch that two others measured changes nothing.
    """
    counted = [one for one in readings if one.counter_j is not None]
    measured = [one for pair in pairwise(counted) if (one := _measured(*pair)) is not None]
    ends = [one.end_s for one in measured]
    stretches = list(measured)
    for first, second in pairwise(readings):
        place = bisect_right(ends, first.at_s)
        inside = place < len(measured) and measured[place].begin_s <= first.at_s
        guess = None if inside else _estimated(first, second)
        stretches += [] if guess is None else [guess]
    stretches.sort(key=lambda one: one.begin_s)
    return PowerCurve(stretches=tuple(stretches), mean_w=_mean_w(stretches, readings))


def _measured(first: EnergyReading, second: EnergyReading) -> PowerStretch | None:
    """Return the stretch between two counters; None if the later one was reset."""
    assert first.counter_j is not None  # noqa: S101  # only such readings are paired
    assert second.counter_j is not None  # noqa: S101  # likewise
    watts = (second.counter_j - first.counter_j) / (second.at_s - first.at_s)
    if not 0 <= watts < math.inf:
        return None
    return PowerStretch(begin_s=first.at_s, end_s=second.at_s, watts=watts, measured=True)


def _estimated(first: EnergyReading, second: EnergyReading) -> PowerStretch | None:
    known = [one for one in (first.power_w, second.power_w) if one is not None]
    if not known:
        return None
    watts = sum(known) / len(known)
    return PowerStretch(begin_s=first.at_s, end_s=second.at_s, watts=watts, measured=False)


def _mean_w(stretches: Sequence[PowerStretch], readings: Sequence[EnergyReading]) -> float | None:
    known_s = sum(one.end_s - one.begin_s for one in stretches)
    if known_s > 0:
        return sum((one.end_s - one.begin_s) * one.watts for one in stretches) / known_s
    powers = [one.power_w for one in readings if one.power_w is not None]
    return sum(powers) / len(powers) if powers else None


def _in_order(readings: Iterable[EnergyReading]) -> list[EnergyReading]:
    """Return one reading for each moment, by time; what several say of one is put together."""
    at: dict[float, EnergyReading] = {}
    for one in sorted(readings, key=_sort_key):
        known = at.get(one.at_s)
        at[one.at_s] = one if known is None else _joined(known, one)
    return list(at.values())


def _sort_key(one: EnergyReading) -> tuple[float, float, float]:
    unknown = -math.inf
    return (
        one.at_s,
        unknown if one.counter_j is None else one.counter_j,
        unknown if one.power_w is None else one.power_w,
    )


def _joined(first: EnergyReading, second: EnergyReading) -> EnergyReading:
    """Return both readings of one moment as one: what the later in order knows counts."""
    return EnergyReading(
        gpu=first.gpu,
        at_s=first.at_s,
        counter_j=first.counter_j if second.counter_j is None else second.counter_j,
        power_w=first.power_w if second.power_w is None else second.power_w,
    )


def _believable(one: EnergyReading) -> EnergyReading:
    return EnergyReading(
        gpu=one.gpu,
        at_s=one.at_s,
        counter_j=_possible(one.counter_j),
        power_w=_possible(one.power_w),
    )


def _possible(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < math.inf else None
