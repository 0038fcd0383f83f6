"""Power, energy and money of a plan, and the share that failures cost. Pure."""

from __future__ import annotations

import math

from hpckit.errors import ConfigError
from hpckit.features.capacity.model_plan import PowerDraw, TrainingBill
from hpckit.features.capacity.model_setup import GpuSpec
from hpckit.features.capacity.words import check_range
from hpckit.values import dataclass, replace

_LEAST_POWER = 0.4
_MOST_NODE = 10.0
_MOST_PUE = 10.0
_MOST_RATE = 1e6
_S_PER_HOUR = 3600.0
_S_PER_DAY = 86400.0
_J_PER_KWH = 3.6e6


def cap_gpu_power(gpu: GpuSpec, watts: float) -> GpuSpec:
    """Return a GPU whose power is capped: it computes more slowly, its memory does not.

    The rate is assumed to follow the square root of the power, since power rises with the clock and
    the square of the voltage. Raises ConfigError if a GPU does not work at that cap.

    Example: an H100 of 700 W at 500 W computes at 85 % of its rate.
    """
    if not _LEAST_POWER * gpu.power_w <= watts <= gpu.power_w:
        raise ConfigError(
            f"a power cap of {watts:g} W is not possible: {gpu.name} takes {gpu.power_w:g} W",
            hint=f"give {_LEAST_POWER * gpu.power_w:g} to {gpu.power_w:g} W",
        )
    slower = gpu.clock * math.sqrt(watts / gpu.power_w)
    return replace(
        gpu,
        power_w=watts,
        node_w=gpu.node_w - gpu.power_w + watts,
        node_source=f"{gpu.node_source}, less {gpu.power_w - watts:g} W by the cap",
        clock=slower,
    )


def set_node_power(gpu: GpuSpec, watts: float) -> GpuSpec:
    """Return a GPU that takes this much with its part of the node; raises ConfigError."""
    if not gpu.power_w <= watts <= _MOST_NODE * gpu.power_w:
        raise ConfigError(
            f"--node-w-per-gpu {watts:g}: {gpu.name} alone takes {gpu.power_w:g} W",
            hint=f"give {gpu.power_w:g} to {_MOST_NODE * gpu.power_w:g} W, the GPU's own included",
        )
    return replace(gpu, node_w=watts, node_source="given by --node-w-per-gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRates:
    """What a site's energy and failures are; prices of None are unknown.

    `pue` is the facility's power per power of its nodes. `gpu_failures_per_day` is how many
    failures that end a round one GPU has in a day: 419 in 54 days on 16384 GPUs by default (Llama
    3's report). `restart_s` and `save_s` are what a restart and a save cost.
    """

    pue: float = 1.1
    price_per_gpu_hour: float | None = None
    carbon_g_per_kwh: float | None = None
    gpu_failures_per_day: float = 419 / 54 / 16384
    restart_s: float = 120.0
    save_s: float = 5.0

    def __post_init__(self) -> None:
        """Check what a user gives; raises ConfigError."""
        check_range("--pue", self.pue, 1, _MOST_PUE)
        check_range("--price-per-gpu-hour", self.price_per_gpu_hour, 0, _MOST_RATE)
        check_range("--carbon-g-per-kwh", self.carbon_g_per_kwh, 0, _MOST_RATE)


def estimate_power_draw(gpu: GpuSpec, gpus: int, pue: float) -> PowerDraw:
    """Return the power of this many GPUs at full load.

    Example: 10,000 GPUs of 400 W are 4 MW, before their nodes and the facility.
    """
    nodes = gpu.node_w * gpus
    return PowerDraw(
        gpus=gpu.power_w * gpus,
        nodes=nodes,
        facility=nodes * pue,
        gpu_w=gpu.power_w,
        node_w=gpu.node_w,
        node_source=gpu.node_source,
        clock=gpu.clock,
        pue=pue,
    )


def estimate_training_bill(
    gpu: GpuSpec, gpus: int, *, step_s: float, steps: int, rates: SiteRates
) -> TrainingBill:
    """Return the bill of this many steps, with the time that failures and saves will cost."""
    lost = estimate_lost_time_share(gpus, rates)
    seconds = steps * step_s / (1 - lost)
    hours = gpus * seconds / _S_PER_HOUR
    energy = estimate_power_draw(gpu, gpus, rates.pue).facility * seconds
    kwh = energy / _J_PER_KWH
    price, carbon = rates.price_per_gpu_hour, rates.carbon_g_per_kwh
    return TrainingBill(
        steps=steps,
        days=seconds / _S_PER_DAY,
        gpu_hours=hours,
        energy_j=energy,
        lost_share=lost,
        cost=None if price is None else price * hours,
        carbon_kg=None if carbon is None else carbon * kwh / 1000,
    )


def estimate_lost_time_share(gpus: int, rates: SiteRates) -> float:
    """Return the share of the time that goes into restarts, repeated steps and saves.

    Saves come as often as Young (1974) finds best: every sqrt(2 x save x time between failures).
    Half of what lies between two saves is repeated after a failure.
    """
    failures_per_s = gpus * rates.gpu_failures_per_day / _S_PER_DAY
    if failures_per_s == 0:
        return 0.0
    between_saves = math.sqrt(2 * rates.save_s / failures_per_s)
    lost = failures_per_s * (rates.restart_s + between_saves / 2) + rates.save_s / between_saves
    return min(0.99, lost)
