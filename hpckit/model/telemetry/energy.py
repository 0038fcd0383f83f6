"""The energy of GPUs, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.values import dataclass, field_names


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySum:
    """Energy of some GPUs over some time, in joules.

    `estimated_j` and `shared_j` are parts of `total_j`: what was estimated as power times time, and
    what was divided with other runs on the same GPU. `gpu_s` are seconds of GPUs, `unknown_s` those
    of them about whose energy nothing is known; these add no joules.
    """

    total_j: float = 0.0
    estimated_j: float = 0.0
    shared_j: float = 0.0
    gpu_s: float = 0.0
    unknown_s: float = 0.0

    def __add__(self, other: EnergySum) -> EnergySum:
        names = field_names(EnergySum)
        return EnergySum(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def part(self, share: float) -> EnergySum:
        """Return a share of it, from 0 to 1; if that is not all, all of it is marked as shared."""
        shared = self.shared_j if share >= 1 else self.total_j
        parts = {name: getattr(self, name) * share for name in field_names(EnergySum)}
        return EnergySum(**parts | {"shared_j": shared * share})

    @property
    def estimated_share(self) -> float:
        """The part of the energy that was estimated, from 0 to 1."""
        return self.estimated_j / self.total_j if self.total_j > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyBill:
    """Energy and cost of a run, or of a launch; None is unknown.

    `kwh` is that of the GPUs alone, `site_kwh` with the site's cooling and losses (PUE). `price` is
    in the currency of the configuration. The lost parts went into restarts and repeated steps, in
    proportion to time. `estimated_share` is the part of the energy that was not measured.
    """

    energy: EnergySum
    gpu_hours: float
    kwh: float | None
    site_kwh: float | None
    carbon_g: float | None
    price: float | None
    lost_kwh: float | None = None
    lost_price: float | None = None
    j_per_step: float | None = None
    j_per_sample: float | None = None
    estimated_share: float = 0.0


def launch_bill(bills: Iterable[EnergyBill]) -> EnergyBill:
    """Return the bill of several runs: the sums of what is known of each.

    They have no steps in common, so there is no energy for each step.
    """
    some = list(bills)
    energy = sum((bill.energy for bill in some), EnergySum())
    sums: dict[str, float | None] = {}
    for name in ("kwh", "site_kwh", "carbon_g", "price", "lost_kwh", "lost_price"):
        known = [value for use in some if (value := getattr(use, name)) is not None]
        sums[name] = sum(known) if known else None
    hours, estimated = sum(use.gpu_hours for use in some), energy.estimated_share
    return EnergyBill(energy=energy, gpu_hours=hours, estimated_share=estimated, **sums)
