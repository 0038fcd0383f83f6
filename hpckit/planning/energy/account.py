"""The energy of runs: which of it was whose, what it cost, and what was lost to failures. Pure.

Each second of a GPU counts once, however many ranks used it and however often its attempts overlap.
A GPU that several runs had at the same time is divided between them in equal parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from hpckit.model.goodput import Goodput
from hpckit.model.telemetry.energy import EnergyBill, EnergySum
from hpckit.planning.energy.readings import EnergyReading, power_curves, total

_J_PER_KWH = 3.6e6
_S_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClaim:
    """A run (its id) had a GPU in one of its attempts, between two moments in seconds."""

    run: str
    attempt: int
    gpu: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyPrices:
    """What energy and GPUs cost at a site; None is unknown. `pue` is 1 or more."""

    per_gpu_hour: float | None = None
    carbon_g_per_kwh: float | None = None
    pue: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """What a run achieved: steps that were kept, samples in them if known.

    `lost_share` is the share of its time on the nodes that went into restarts and repeated steps.
    """

    steps: int | None = None
    samples: int | None = None
    lost_share: float | None = None


def energy_of_runs(
    claims: Iterable[GpuClaim], readings: Iterable[EnergyReading]
) -> Mapping[str, EnergySum]:
    """Return the energy of each run, from who had which GPU when, and what the GPUs said."""
    curves = power_curves(readings)
    found: dict[str, EnergySum] = {}
    by_gpu = sorted((one for one in claims if one.end_s > one.begin_s), key=lambda one: one.gpu)
    for gpu, some in groupby(by_gpu, key=lambda one: one.gpu):
        curve = curves.get(gpu) or power_curves([EnergyReading(gpu=gpu, at_s=0.0)])[gpu]
        for begin_s, end_s, runs in _stretches(tuple(some)):
            part = curve.energy(begin_s, end_s).divided(len(runs))
            for run in runs:
                found[run] = found.get(run, EnergySum()) + part
    return found


def _stretches(claims: Sequence[GpuClaim]) -> Iterator[tuple[float, float, tuple[str, ...]]]:
    """Yield the times between which the runs that have a GPU change, with these runs."""
    edges = sorted({edge for one in claims for edge in (one.begin_s, one.end_s)})
    for begin_s, end_s in pairwise(edges):
        here = {one.run for one in claims if one.begin_s <= begin_s and one.end_s >= end_s}
        if here:
            yield begin_s, end_s, tuple(sorted(here))


def work_done(account: Goodput, steps: int | None, samples_per_step: int | None) -> WorkDone:
    """Return what a run achieved, from its account; `steps` is how many it kept."""
    running = account.parts.running
    lost = (account.parts.lost + account.parts.restart) / running if running else None
    samples = steps * samples_per_step if steps and samples_per_step else None
    return WorkDone(steps=steps, samples=samples, lost_share=lost)


def energy_bill(
    energy: EnergySum, prices: EnergyPrices, work: WorkDone | None = None
) -> EnergyBill:
    """Return what a run's energy comes to. Energy of which nothing is known is None, never 0."""
    done = work or WorkDone()
    hours = energy.gpu_s / _S_PER_HOUR
    known = energy.total_j if energy.unknown_s < energy.gpu_s else None
    kwh = None if known is None else known / _J_PER_KWH
    site_kwh = _times(kwh, prices.pue)
    price = _times(prices.per_gpu_hour, hours)
    return EnergyBill(
        energy=energy,
        gpu_hours=hours,
        kwh=kwh,
        site_kwh=site_kwh,
        carbon_g=_times(site_kwh, prices.carbon_g_per_kwh),
        price=price,
        lost_kwh=_times(kwh, done.lost_share),
        lost_price=_times(price, done.lost_share),
        j_per_step=_per(known, done.steps),
        j_per_sample=_per(known, done.samples),
        estimated_share=energy.estimated_j / energy.total_j if energy.total_j > 0 else 0.0,
    )


def launch_bill(bills: Iterable[EnergyBill], prices: EnergyPrices) -> EnergyBill:
    """Return the bill of a launch: the sums over its runs. What is known to be lost adds up.

    A launch has no steps of its own, so it has no energy for each step.
    """
    some = list(bills)
    whole = energy_bill(total(one.energy for one in some), prices)
    return EnergyBill(
        energy=whole.energy,
        gpu_hours=whole.gpu_hours,
        kwh=whole.kwh,
        site_kwh=whole.site_kwh,
        carbon_g=whole.carbon_g,
        price=whole.price,
        lost_kwh=_sum(one.lost_kwh for one in some),
        lost_price=_sum(one.lost_price for one in some),
        estimated_share=whole.estimated_share,
    )


def _times(value: float | None, factor: float | None) -> float | None:
    return None if value is None or factor is None else value * factor


def _per(value: float | None, count: int | None) -> float | None:
    return value / count if value is not None and count else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) if known else None
