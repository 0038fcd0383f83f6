"""What a run used: its nodes' telemetry over all attempts, its energy, and what that comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpckit.model.telemetry.vocabulary import GpuDevice, TelemetryRow
from hpckit.values import dataclass, field, field_names


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    """What a run used of one node in `seconds`, all attempts together.

    `row` has all its rows as one, with counters as increases. `devices` are the node's GPUs.
    `gpu_seconds` is how long each GPU was measured, by UUID: attempts may have had different ones.
    """

    node: str
    seconds: float
    row: TelemetryRow
    devices: tuple[GpuDevice, ...] = ()
    gpu_seconds: Mapping[str, float] = field(default_factory=dict)

    def measured_gpu_seconds(self, uuid: str) -> float:
        """Return how long a GPU was measured, in seconds."""
        return self.gpu_seconds.get(uuid, self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUsage:
    """What a run used of its nodes; in `seconds` at least one of them was measured.

    `attempts` has the same for each attempt by itself, by number.
    """

    nodes: tuple[NodeUsage, ...] = ()
    attempts: Mapping[int, tuple[NodeUsage, ...]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTelemetry:
    """The few numbers of a run that `hpckit status` has; null if unknown.

    `gpu_utilization` is the mean over GPUs and time (0 to 1), `gpu_memory_bytes` the most that one
    GPU used, `power_w` the mean power of all GPUs together, `energy_j` what they used in all
    attempts, `data_wait_share` the share of step time in which ranks waited for data.
    """

    gpu_utilization: float | None = None
    gpu_memory_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    data_wait_share: float | None = None


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

    def scale_by_share(self, share: float) -> EnergySum:
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


def sum_energy_bills(bills: Iterable[EnergyBill]) -> EnergyBill:
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
