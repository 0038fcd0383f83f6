"""From telemetry to what a diagnosis is made from, and what the energy comes to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpckit.model.goodput import Goodput
from hpckit.model.launch import Cluster
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.usage import EnergyBill, EnergySum, NodeUsage, RunTelemetry
from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GaugeSpread,
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuRow,
    HostCounter,
    HostGauge,
)
from hpckit.planning.diagnosis.evidence import GpuUse, HostUse, ratio_of_sums_where_known
from hpckit.values import replace

_HEAT = frozenset({ClockReason.software_thermal, ClockReason.hardware_thermal})


def summarize_gpu_use(usages: Iterable[NodeUsage]) -> tuple[GpuUse, ...]:
    """Return how each GPU was used; MIG devices instead of the GPU that they are parts of."""
    found: list[GpuUse] = []
    for usage in usages:
        devices = {device.uuid: device for device in usage.devices}
        parents = {device.parent for device in usage.devices}
        found += [
            _summarize_one_gpu(gpu, devices.get(gpu.uuid), usage)
            for gpu in usage.row.gpus
            if gpu.uuid not in parents
        ]
    return tuple(found)


def _summarize_one_gpu(gpu: GpuRow, device: GpuDevice | None, usage: NodeUsage) -> GpuUse:
    busy = gpu.gauges.get(GpuGauge.busy_share) or gpu.gauges.get(GpuGauge.graphics_share)
    memory = gpu.gauges.get(GpuGauge.memory_used_bytes)
    clock = gpu.gauges.get(GpuGauge.sm_clock_mhz)
    nvlink = _sum_known_counters(gpu.counters, GpuCounter.nvlink_tx_bytes, GpuCounter.nvlink_rx_bytes)
    pcie = _sum_known_counters(gpu.counters, GpuCounter.pcie_tx_bytes, GpuCounter.pcie_rx_bytes)
    rows = _sum_known_counters(
        gpu.counters, GpuCounter.rows_remapped_corrected, GpuCounter.rows_remapped_uncorrected
    )
    ecc = gpu.counters.get(GpuCounter.ecc_uncorrected)
    seconds = usage.measured_gpu_seconds(gpu.uuid)
    return GpuUse(
        uuid=gpu.uuid,
        node=usage.node,
        seconds=seconds,
        samples=gpu.samples,
        utilization=_mean_or_none(busy),
        sm_activity=_mean_or_none(gpu.gauges.get(GpuGauge.sm_share)),
        tensor_activity=_mean_or_none(gpu.gauges.get(GpuGauge.tensor_share)),
        dram_activity=_mean_or_none(gpu.gauges.get(GpuGauge.dram_share)),
        memory_peak_bytes=None if memory is None else int(memory.max),
        memory_bytes=None if device is None else device.memory_bytes,
        power_w=_mean_or_none(gpu.gauges.get(GpuGauge.power_w)),
        power_limit_w=_mean_or_none(gpu.gauges.get(GpuGauge.power_limit_w)),
        clock_share=_clock_share_of_max(clock, None if device is None else device.sm_clock_max_mhz),
        heat_share=_throttled_time_share(gpu, GpuCounter.thermal_capped_s, _HEAT, seconds),
        power_share=_throttled_time_share(
            gpu, GpuCounter.power_capped_s, frozenset({ClockReason.power_cap}), seconds
        ),
        ecc_errors=None if ecc is None else int(ecc),
        remapped_rows=None if rows is None else int(rows),
        nvlink_bytes_per_s=_rate_per_second(nvlink, seconds),
        pcie_bytes_per_s=_rate_per_second(pcie, seconds),
    )


def _clock_share_of_max(clock: GaugeSpread | None, most: float | None) -> float | None:
    """Return the mean clock over the most that is possible, or that was seen."""
    if clock is None:
        return None
    whole = max(clock.max, most or 0.0)
    return clock.mean / whole if whole > 0 else None


def _mean_or_none(spread: GaugeSpread | None) -> float | None:
    return None if spread is None else spread.mean


def _throttled_time_share(
    gpu: GpuRow, counter: GpuCounter, reasons: frozenset[ClockReason], seconds: float
) -> float | None:
    """Return the share of time in which clocks were lowered: as counted, or as sampled if more.

    Drivers of some GPUs have the counter, and leave it at 0.
    """
    counted = _rate_per_second(gpu.counters.get(counter), seconds)
    if counted is None and GpuGauge.sm_clock_mhz not in gpu.gauges and not gpu.reasons:
        return None
    sampled = max(gpu.reasons.get(reason, 0.0) for reason in reasons)
    return min(max(counted or 0.0, sampled), 1.0)


def _sum_known_counters(counters: Mapping[GpuCounter, float], *names: GpuCounter) -> float | None:
    known = [counters[name] for name in names if name in counters]
    return sum(known) if known else None


def _rate_per_second(amount: float | None, seconds: float) -> float | None:
    return None if amount is None or seconds <= 0 else amount / seconds


def summarize_host_use(
    usages: Iterable[NodeUsage], *, cores: int | None, shared: bool
) -> tuple[HostUse, ...]:
    """Return how each node was used. `cores` are the run's on a node; `shared`: others ran there.

    What the job's control group counts is not the run's alone then, and is left out.
    """
    known = (usage for usage in usages if usage.row.host is not None)
    return tuple(_summarize_one_host(usage, None if shared else cores) for usage in known)


def _summarize_one_host(usage: NodeUsage, cores: int | None) -> HostUse:
    host = usage.row.host
    assert host is not None, "called for nodes with a host"  # noqa: S101
    counters, gauges = host.counters, host.gauges
    memory = gauges.get(HostGauge.job_memory_anonymous_bytes)
    ports = gauges.get(HostGauge.infiniband_ports_active)
    network = [
        counters[name]
        for name in (
            HostCounter.network_tx_bytes,
            HostCounter.network_rx_bytes,
            HostCounter.infiniband_tx_bytes,
            HostCounter.infiniband_rx_bytes,
        )
        if name in counters
    ]
    pressures = [
        counters.get(of_job, counters.get(of_node))
        for of_job, of_node in (
            (HostCounter.job_cpu_pressure_s, HostCounter.cpu_pressure_s),
            (HostCounter.job_io_pressure_s, HostCounter.io_pressure_s),
        )
    ]
    cpu_pressure, io_pressure = (_rate_per_second(pressure, usage.seconds) for pressure in pressures)
    alone = cores is not None
    return HostUse(
        node=usage.node,
        seconds=usage.seconds,
        samples=host.samples,
        cores=cores,
        cores_busy=_rate_per_second(counters.get(HostCounter.job_cpu_s), usage.seconds) if alone else None,
        memory_peak_bytes=int(memory.max) if memory is not None and alone else None,
        cpu_pressure=cpu_pressure,
        io_pressure=io_pressure,
        infiniband_ports=None if ports is None else int(ports.max),
        network_bytes_per_s=_rate_per_second(sum(network), usage.seconds) if network else None,
    )


def list_step_reports_of_ranks(usages: Iterable[NodeUsage]) -> tuple[RankSteps, ...]:
    """Return what the ranks of all nodes reported; a rank that moved stands once for each node."""
    return tuple(replace(rank, node=usage.node) for usage in usages for rank in usage.row.ranks)


def sum_gpu_energy(usages: Iterable[NodeUsage], share: float = 1) -> EnergySum:
    """Return the energy of the GPUs: as counted, or else estimated as mean power times time.

    The time is that in which the power was known. Of GPUs that a run did not have to itself, it has
    its part: as measured on their node (`own_s`), or `share` of all.
    """
    whole = EnergySum()
    for usage in usages:
        for gpu in usage.row.gpus:
            if any(device.uuid == gpu.uuid and device.parent for device in usage.devices):
                continue  # a part of a GPU: its energy is that GPU's
            seconds = usage.measured_gpu_seconds(gpu.uuid)
            own_s = gpu.counters.get(GpuCounter.own_s, seconds)
            own = min(own_s / seconds, 1.0) if seconds > 0 else 1.0
            whole += _compute_gpu_energy(gpu, seconds).scale_by_share(own * share)
    return whole


def sum_run_energy(attempts: Mapping[int, Sequence[NodeUsage]], share: float = 1) -> EnergySum:
    """Return the energy of a run's GPUs: of each attempt as `sum_gpu_energy` has it, by number.

    An attempt whose driver did not count is estimated, though the others are counted.
    """
    return sum((sum_gpu_energy(used, share) for used in attempts.values()), EnergySum())


def _compute_gpu_energy(gpu: GpuRow, seconds: float) -> EnergySum:
    counted = gpu.counters.get(GpuCounter.energy_j)
    if counted is not None:
        return EnergySum(total_j=counted, gpu_s=seconds)
    power = gpu.gauges.get(GpuGauge.power_w)
    if power is None:
        return EnergySum(gpu_s=seconds, unknown_s=seconds)
    known_s = seconds * min(power.count / gpu.samples, 1.0) if gpu.samples else 0.0
    joules = power.mean * known_s
    return EnergySum(total_j=joules, estimated_j=joules, gpu_s=seconds, unknown_s=seconds - known_s)


def samples_per_step(ranks: Iterable[RankSteps]) -> float | None:
    """Return how many samples a step of all ranks has; None unless `run.steps` was told."""
    return ratio_of_sums_where_known((rank.samples, rank.steps) for rank in ranks if rank.samples)


def summarize_telemetry(
    gpus: Sequence[GpuUse], ranks: Sequence[RankSteps], energy: EnergySum, seconds: float
) -> RunTelemetry:
    """Return the most wanted figures of a run, measured over `seconds`."""
    busy = ((gpu.utilization and gpu.utilization * gpu.seconds, gpu.seconds) for gpu in gpus)
    joules = [gpu.power_w * gpu.seconds for gpu in gpus if gpu.power_w is not None]
    peaks = [gpu.memory_peak_bytes for gpu in gpus if gpu.memory_peak_bytes is not None]
    known = energy.gpu_s > 0 and energy.unknown_s < energy.gpu_s
    return RunTelemetry(
        gpu_utilization=ratio_of_sums_where_known(busy),
        gpu_memory_bytes=max(peaks, default=None),
        power_w=sum(joules) / seconds if joules and seconds > 0 else None,
        energy_j=energy.total_j if known else None,
        data_wait_share=ratio_of_sums_where_known((rank.data_s, rank.seconds) for rank in ranks),
    )


_J_PER_KWH = 3.6e6
_S_PER_HOUR = 3600.0


def share_of_lost_time(account: Goodput) -> float | None:
    """Return the share of the time on the nodes that went into restarts and repeated steps."""
    running = account.parts.running
    return (account.parts.lost + account.parts.restart) / running if running else None


def compute_energy_bill(
    energy: EnergySum,
    site: Cluster,
    *,
    lost: float | None = None,
    steps: int | None = None,
    step_samples: float | None = None,
) -> EnergyBill:
    """Return what a run's energy comes to at a site; `steps` is how many it kept.

    Energy of which nothing is known is None, never 0.
    """
    hours = energy.gpu_s / _S_PER_HOUR
    known = energy.total_j if energy.unknown_s < energy.gpu_s else None
    kwh = None if known is None else known / _J_PER_KWH
    site_kwh = _multiply_if_known(kwh, site.pue or 1.0)
    price = _multiply_if_known(site.price_per_gpu_hour, hours)
    return EnergyBill(
        energy=energy,
        gpu_hours=hours,
        kwh=kwh,
        site_kwh=site_kwh,
        carbon_g=_multiply_if_known(site_kwh, site.carbon_g_per_kwh),
        price=price,
        lost_kwh=_multiply_if_known(kwh, lost),
        lost_price=_multiply_if_known(price, lost),
        j_per_step=_divide_if_known(known, steps),
        j_per_sample=_divide_if_known(known, round((steps or 0) * (step_samples or 0))),
        estimated_share=energy.estimated_share,
    )


def _multiply_if_known(value: float | None, factor: float | None) -> float | None:
    return None if value is None or factor is None else value * factor


def _divide_if_known(value: float | None, count: int | None) -> float | None:
    return value / count if value is not None and count else None
