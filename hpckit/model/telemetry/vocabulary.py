"""The vocabulary of node telemetry: what is measured of a node, its GPUs and their faults.

Units stand in the names (`bytes`, `w`, `j`, `c`, `s`, `mhz`); a share is from 0 to 1. A *gauge* has
a value at a moment, so a row holds its minimum, mean, maximum and 95th percentile. A *counter* only
grows, so a row holds its value at the end, and rows merge without loss; where it fell, it was reset
(`counter_increase`). What a device cannot tell is absent: never zero, never null.

The JSON form is in `json_form.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.values import dataclass, field


class GpuVendor(StrEnum):
    """Who made a GPU; `amd` was only ever tried on a fake library."""

    nvidia = "nvidia"
    amd = "amd"


class GpuGauge(StrEnum):
    """What is measured of a GPU at a moment."""

    busy_share = "busy_share"
    """share of time in which at least one kernel ran: says nothing about how much of the GPU did"""
    memory_busy_share = "memory_busy_share"
    """share of time in which memory was read or written: not how full it is"""
    graphics_share = "graphics_share"
    """share of time in which compute or graphics ran, by hardware counters; also of MIG devices"""
    sm_share = "sm_share"
    """share of the multiprocessors that were busy"""
    sm_occupancy_share = "sm_occupancy_share"
    """share of the warps that the multiprocessors can hold"""
    tensor_share = "tensor_share"
    """share of time in which tensor cores computed"""
    dram_share = "dram_share"
    """share of the memory bandwidth that was used"""
    memory_used_bytes = "memory_used_bytes"
    """memory allocated, without what the driver reserves"""
    temperature_c = "temperature_c"
    temperature_margin_c = "temperature_margin_c"
    """how much warmer the GPU may become before it slows down"""
    memory_temperature_c = "memory_temperature_c"
    power_w = "power_w"
    """power drawn, for most GPUs averaged over a second"""
    power_limit_w = "power_limit_w"
    """the limit in force"""
    sm_clock_mhz = "sm_clock_mhz"
    memory_clock_mhz = "memory_clock_mhz"


class GpuCounter(StrEnum):
    """What is counted of a GPU, mostly since the driver was loaded."""

    energy_j = "energy_j"
    power_capped_s = "power_capped_s"
    """time with lower clocks because of the power limit"""
    thermal_capped_s = "thermal_capped_s"
    """time with lower clocks because of heat"""
    board_limited_s = "board_limited_s"
    """time with lower clocks because of a limit of the board"""
    reliability_capped_s = "reliability_capped_s"
    """time with lower clocks because of the reliable voltage"""
    software_thermal_s = "software_thermal_s"
    """time in which the driver lowered clocks because of heat"""
    hardware_thermal_s = "hardware_thermal_s"
    """time in which the hardware lowered clocks because of heat"""
    power_brake_s = "power_brake_s"
    """time in which the power brake of the node lowered clocks"""
    ecc_corrected = "ecc_corrected"
    """corrected memory errors since the driver was loaded"""
    ecc_uncorrected = "ecc_uncorrected"
    """uncorrected memory errors since the driver was loaded"""
    ecc_corrected_lifetime = "ecc_corrected_lifetime"
    ecc_uncorrected_lifetime = "ecc_uncorrected_lifetime"
    rows_remapped_corrected = "rows_remapped_corrected"
    """memory rows replaced because of corrected errors, ever"""
    rows_remapped_uncorrected = "rows_remapped_uncorrected"
    """memory rows replaced because of uncorrected errors, ever"""
    pcie_tx_bytes = "pcie_tx_bytes"
    pcie_rx_bytes = "pcie_rx_bytes"
    pcie_replays = "pcie_replays"
    pcie_corrected_errors = "pcie_corrected_errors"
    pcie_fatal_errors = "pcie_fatal_errors"
    nvlink_tx_bytes = "nvlink_tx_bytes"
    nvlink_rx_bytes = "nvlink_rx_bytes"
    nvlink_crc_errors = "nvlink_crc_errors"
    nvlink_replays = "nvlink_replays"
    nvlink_recoveries = "nvlink_recoveries"
    own_s = "own_s"
    """time of the GPU that is the run's, divided with runs beside it; absent if all of it is"""
    xids = "xids"
    """XID errors seen by the sampler of this attempt"""


class ClockReason(StrEnum):
    """Why the clocks of a GPU are not higher."""

    idle = "idle"
    application_clocks = "application_clocks"
    """someone set these clocks"""
    power_cap = "power_cap"
    hardware_slowdown = "hardware_slowdown"
    """heat, the power brake or the power supply; often one of the next three as well"""
    sync_boost = "sync_boost"
    software_thermal = "software_thermal"
    hardware_thermal = "hardware_thermal"
    power_brake = "power_brake"
    display_clocks = "display_clocks"


class GpuTrouble(StrEnum):
    """What is wrong with a GPU, or has to be done with it."""

    lost = "lost"
    """the driver cannot reach it any more"""
    reset_required = "reset_required"
    """it answers nothing until it is reset"""
    remap_pending = "remap_pending"
    """a memory row is replaced at the next reset"""
    remap_failed = "remap_failed"
    """a memory row could not be replaced: the GPU has to be exchanged"""
    advised_reset = "advised_reset"
    """the driver advises to reset the GPU"""
    advised_reboot = "advised_reboot"
    """the driver advises to boot the node"""
    advised_drain = "advised_drain"
    """the driver advises to use the GPU no more with its neighbours (peer to peer)"""
    advised_drain_and_reset = "advised_drain_and_reset"
    """the driver advises to start no new work, and to reset the GPU"""
    advised_other = "advised_other"
    """the driver advises something that this hpckit does not know"""


class HostGauge(StrEnum):
    """What is measured of a node at a moment."""

    cpu_share = "cpu_share"
    """share of the node's CPU time that was used since the sample before"""
    load = "load"
    """processes that run or wait for a CPU or a disk, averaged over a minute"""
    memory_used_bytes = "memory_used_bytes"
    memory_available_bytes = "memory_available_bytes"
    swap_used_bytes = "swap_used_bytes"
    shared_memory_used_bytes = "shared_memory_used_bytes"
    """files in /dev/shm, such as batches of data loaders"""
    job_memory_bytes = "job_memory_bytes"
    """memory of the job's cgroup, page cache included"""
    job_memory_anonymous_bytes = "job_memory_anonymous_bytes"
    """the same without page cache: what cannot be given back"""
    infiniband_ports_active = "infiniband_ports_active"
    sampler_s = "sampler_s"
    """time that taking a sample took"""


class HostCounter(StrEnum):
    """What is counted of a node."""

    cpu_waiting_s = "cpu_waiting_s"
    """CPU time in which the node waited for disks (iowait)"""
    cpu_pressure_s = "cpu_pressure_s"
    """time in which some process waited for a CPU (PSI `some`)"""
    memory_pressure_s = "memory_pressure_s"
    memory_stall_s = "memory_stall_s"
    """time in which all processes waited for memory (PSI `full`)"""
    io_pressure_s = "io_pressure_s"
    io_stall_s = "io_stall_s"
    job_cpu_s = "job_cpu_s"
    job_throttled_s = "job_throttled_s"
    """time in which the job was held back by its CPU limit"""
    job_cpu_pressure_s = "job_cpu_pressure_s"
    job_memory_pressure_s = "job_memory_pressure_s"
    job_io_pressure_s = "job_io_pressure_s"
    job_memory_limit_hits = "job_memory_limit_hits"
    job_oom_kills = "job_oom_kills"
    job_read_bytes = "job_read_bytes"
    job_written_bytes = "job_written_bytes"
    disk_read_bytes = "disk_read_bytes"
    disk_written_bytes = "disk_written_bytes"
    network_tx_bytes = "network_tx_bytes"
    network_rx_bytes = "network_rx_bytes"
    network_errors = "network_errors"
    """packets in error or dropped"""
    infiniband_tx_bytes = "infiniband_tx_bytes"
    infiniband_rx_bytes = "infiniband_rx_bytes"
    infiniband_errors = "infiniband_errors"
    """symbol and receive errors, discards and link integrity errors of all ports"""
    infiniband_links_downed = "infiniband_links_downed"
    cpu_energy_j = "cpu_energy_j"
    """energy of all processor packages (RAPL)"""
    dram_energy_j = "dram_energy_j"


class TelemetryEventKind(StrEnum):
    """What happened between two samples."""

    xid = "xid"
    """an XID error of the driver; `code` is its number"""
    gpu_lost = "gpu_lost"
    """a GPU does not answer any more; `code` is NVML's error"""
    gpu_back = "gpu_back"
    """a GPU that was lost answers again"""
    driver_lost = "driver_lost"
    """the driver does not answer any more; `code` is NVML's error"""
    driver_reloaded = "driver_reloaded"
    """the driver answers again: its counters restarted"""
    gpus_stalled = "gpus_stalled"
    """a call of the driver does not return: rows continue without GPUs"""
    gpus_answered = "gpus_answered"
    """it has returned"""
    note = "note"
    """something that a person should know, in `message`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSpread:
    """A gauge over `count` samples.

    Of merged spreads, `p95` is the largest: at least 95% of the samples are not above it.
    """

    min: float
    mean: float
    max: float
    p95: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """What does not change of a GPU, or of a MIG device (`parent`: the UUID of its GPU).

    `index` is NVML's, by PCI address: not CUDA's. `supported` are the gauges and counters it has.
    `slices` are those of a MIG device; of a GPU with MIG, how many it can have.
    """

    uuid: str
    vendor: GpuVendor
    index: int
    name: str
    pci: str = ""
    driver: str = ""
    memory_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    sm_clock_max_mhz: int | None = None
    slowdown_c: int | None = None
    shutdown_c: int | None = None
    parent: str | None = None
    slices: int | None = None
    supported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """A GPU at a moment. `reasons` are those of its clocks; counters may be left out."""

    uuid: str
    gauges: Mapping[GpuGauge, float] = field(default_factory=dict)
    counters: Mapping[GpuCounter, float] = field(default_factory=dict)
    reasons: frozenset[ClockReason] = frozenset()
    troubles: frozenset[GpuTrouble] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """A node at a moment."""

    gauges: Mapping[HostGauge, float] = field(default_factory=dict)
    counters: Mapping[HostCounter, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A GPU over some time.

    `reasons` maps each clock reason to the share of the `samples` that had it, without zeros.
    """

    uuid: str
    samples: int
    gauges: Mapping[GpuGauge, GaugeSpread] = field(default_factory=dict)
    counters: Mapping[GpuCounter, float] = field(default_factory=dict)
    reasons: Mapping[ClockReason, float] = field(default_factory=dict)
    troubles: frozenset[GpuTrouble] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """A node over some time."""

    samples: int
    gauges: Mapping[HostGauge, GaugeSpread] = field(default_factory=dict)
    counters: Mapping[HostCounter, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryRow:
    """A node from `start` to `end` (UTC), and the steps that its ranks reported in that time.

    The first row of an attempt has `start == end`: its counters are what later ones are compared
    with. `ranks` leave their node out: all are of the node that the file is named after.
    """

    start: datetime
    end: datetime
    host: HostRow | None = None
    gpus: tuple[GpuRow, ...] = ()
    ranks: tuple[RankSteps, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryTotal:
    """All rows of a node in an attempt so far, as one; counters are how much they have grown.

    It is written now and then, so that reading the end of a file is enough. `measured_s` is how
    long all rows are together: a clock that is set makes the row longer or shorter than that. None:
    from its start to its end.
    """

    row: TelemetryRow
    measured_s: float | None = None

    @property
    def span_s(self) -> float:
        """The seconds from the start of the row to its end."""
        return (self.row.end - self.row.start).total_seconds()

    @property
    def measured_or_span_s(self) -> float:
        """The seconds that were measured."""
        return self.span_s if self.measured_s is None else self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryEvent:
    """Something that happened to a node or to the GPU `uuid`, `count` times in a row."""

    at: datetime
    kind: TelemetryEventKind
    uuid: str | None = None
    code: int | None = None
    message: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySegment:
    """The first line of a telemetry file: rows of about `row_s` seconds of `node`, from `start`."""

    node: str
    start: datetime
    row_s: float


TelemetryRecord = TelemetrySegment | GpuDevice | TelemetryRow | TelemetryTotal | TelemetryEvent
"""What a line of a telemetry file is."""


def build_placeholder_uuid(index: int) -> str:
    """Return a placeholder for the UUID of a GPU that was lost before its UUID was read."""
    return f"index {index}"


def counter_increase(before: float, after: float) -> float:
    """Return by how much a counter grew; one that fell by more than half began again at 0.

    A smaller fall is no growth: a network card that is gone takes its bytes out of a sum, and the
    kernel lets iowait fall.
    """
    if after >= before:
        return after - before
    return after if after < before / 2 else 0.0
