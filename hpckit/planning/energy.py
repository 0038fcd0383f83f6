"""What the energy of runs comes to: its cost, and what was lost to failures. Pure.

planning.diagnosis.usage has the energy itself.
"""

from __future__ import annotations

from hpckit.model.goodput import Goodput
from hpckit.model.telemetry.energy import EnergyBill, EnergySum
from hpckit.values import dataclass

_J_PER_KWH = 3.6e6
_S_PER_HOUR = 3600.0


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


def work_done(account: Goodput, steps: int | None, samples_per_step: float | None) -> WorkDone:
    """Return what a run achieved, from its account; `steps` is how many it kept."""
    running = account.parts.running
    lost = (account.parts.lost + account.parts.restart) / running if running else None
    samples = round(steps * samples_per_step) if steps and samples_per_step else None
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
        estimated_share=energy.estimated_share,
    )


def _times(value: float | None, factor: float | None) -> float | None:
    return None if value is None or factor is None else value * factor


def _per(value: float | None, count: int | None) -> float | None:
    return value / count if value is not None and count else None
