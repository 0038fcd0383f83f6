"""A sample of the node and its job: processors, memory, pressure, disks, networks, energy.

Reads /proc and /sys by itself. It starts no program, and walks over no
processes: a sample costs the same however many there are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from hpckit.model.telemetry.vocabulary import HostCounter, HostGauge, HostSample
from hpckit.observe.sysfs import (
    find_infiniband_ports,
    list_folder,
    read_integer_file,
    read_named_numbers,
    read_small_file,
    sum_infiniband_ports,
)
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field

_TICKS = os.sysconf("SC_CLK_TCK")
_SECTOR = 512
_JOULES = 1e-6
"""The files count microjoules."""

_UNREADABLE = (OSError, RuntimeError, ValueError, AttributeError, LookupError)
"""What is raised where a kernel or a container hides a file."""


@dataclass(slots=True)
class HostReader:
    """Takes samples of this node; `root` replaces `/` for what differs between jobs."""

    root: Path = Path("/")
    _job: JobCgroup | None = field(init=False)
    _ports: tuple[Path, ...] = field(init=False)
    _rapl: RaplReader = field(init=False)
    _cpu: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        folder = find_job_cgroup(self.root)
        self._job = None if folder is None else JobCgroup(folder)
        self._ports = find_infiniband_ports(self.root)
        self._rapl = RaplReader(self.root)
        self._cpu = _read_cpu_times()[:2]

    def read_sample(self) -> HostSample:
        """Return a sample; what cannot be read is left out."""
        gauges: dict[HostGauge, float] = {}
        counters: dict[HostCounter, float] = (
            read_node_pressure_stall_times(self.root) | self._rapl.sum_package_joules()
        )
        parts = map(
            _read_sample_or_empty,
            (
                self._read_processor_use,
                _read_host_memory,
                _read_shared_memory,
                _read_disks,
                _sum_network_counters,
            ),
        )
        job = self._job.read_usage() if self._job else HostSample()
        for sample in (*parts, sum_infiniband_ports(self._ports), job):
            gauges |= sample.gauges
            counters |= sample.counters
        return HostSample(gauges=gauges, counters=counters)

    def _read_processor_use(self) -> HostSample:
        (busy, total, waiting), before = _read_cpu_times(), self._cpu
        self._cpu = (busy, total)
        gauges: dict[HostGauge, float] = {HostGauge.load: os.getloadavg()[0]}
        if total > before[1]:
            share = (busy - before[0]) / (total - before[1])
            gauges[HostGauge.cpu_share] = min(max(share, 0.0), 1.0)
        return HostSample(gauges=gauges, counters={HostCounter.cpu_waiting_s: waiting})


def _read_sample_or_empty(part: Callable[[], HostSample]) -> HostSample:
    try:
        return part()
    except _UNREADABLE:
        return HostSample()


def _read_cpu_times() -> tuple[float, float, float]:
    """Return busy, total and waiting seconds of all CPUs. A guest's time is part of the first number."""
    first = (read_small_file(Path("/proc/stat")) or "").partition("\n")[0]
    user, nice, system, idle, waiting, *others = (int(number) / _TICKS for number in first.split()[1:9])
    busy = user + nice + system + sum(others)
    return busy, busy + idle + waiting, waiting


def _read_host_memory() -> HostSample:
    found = read_memory_bytes()
    return HostSample(
        gauges={
            HostGauge.memory_used_bytes: found["MemTotal"] - found["MemAvailable"],
            HostGauge.memory_available_bytes: found["MemAvailable"],
            HostGauge.swap_used_bytes: found["SwapTotal"] - found["SwapFree"],
        }
    )


def read_memory_bytes() -> dict[str, int]:
    """Return what the kernel says of memory, by its names."""
    lines = (line.split() for line in (read_small_file(Path("/proc/meminfo")) or "").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def _read_shared_memory() -> HostSample:
    seen = os.statvfs("/dev/shm")  # noqa: S108  # only its size is read
    used = (seen.f_blocks - seen.f_bfree) * seen.f_frsize
    return HostSample(gauges={HostGauge.shared_memory_used_bytes: used})


def _read_disks() -> HostSample:
    lines = [line.split() for line in (read_small_file(Path("/proc/diskstats")) or "").splitlines()]
    disks = [words for words in lines if Path("/sys/block", words[2]).exists()]  # without partitions
    if not disks:
        return HostSample()
    return HostSample(
        counters={
            HostCounter.disk_read_bytes: sum(int(words[5]) for words in disks) * _SECTOR,
            HostCounter.disk_written_bytes: sum(int(words[9]) for words in disks) * _SECTOR,
        }
    )


def _sum_network_counters() -> HostSample:
    lines = (read_small_file(Path("/proc/net/dev")) or "").splitlines()[2:]
    cards = [line.partition(":") for line in lines]
    outside = [[int(number) for number in told.split()] for name, _, told in cards if name.strip() != "lo"]
    return HostSample(
        counters={
            HostCounter.network_tx_bytes: sum(card[8] for card in outside),
            HostCounter.network_rx_bytes: sum(card[0] for card in outside),
            HostCounter.network_errors: sum(card[2] + card[3] + card[10] + card[11] for card in outside),
        }
    )


@dataclass(slots=True, kw_only=True)
class _Zone:
    folder: Path
    counter: HostCounter
    wraps_at: int
    last: int
    total: int = 0

    def read_microjoules(self) -> int:
        """Return the microjoules since the zone was found."""
        now = read_integer_file(self.folder / "energy_uj")
        if now is not None:
            grown = now - self.last
            self.total += grown if grown >= 0 else grown + self.wraps_at
            self.last = now
        return self.total


@dataclass(slots=True)
class RaplReader:
    """The energy since this reader was made, from the kernel's powercap files (RAPL).

    Most kernels let only root read them: then there is none. Read it at least once a minute: the
    hardware counts in a register of 32 bits that wraps around within minutes to hours.
    """

    root: Path = Path("/")
    _zones: list[_Zone] = field(init=False)

    def __post_init__(self) -> None:
        found = (_open_zone(folder) for folder in _list_zone_folders(self.root))
        self._zones = [zone for zone in found if zone is not None]

    def sum_package_joules(self) -> dict[HostCounter, float]:
        """Return joules by counter, the sum over all packages; empty if none can be read."""
        sums: dict[HostCounter, float] = {}
        for zone in self._zones:
            sums[zone.counter] = sums.get(zone.counter, 0) + zone.read_microjoules() * _JOULES
        return sums


def _list_zone_folders(root: Path) -> list[Path]:
    packages = [
        folder for folder in list_folder(root / "sys/class/powercap") if folder.name.startswith("intel-rapl:")
    ]
    inner = [zone for package in packages for zone in list_folder(package) if zone.name.startswith("intel-")]
    # A zone shows both in the folder itself and in that of its package.
    return list({path.name: path for path in [*packages, *inner]}.values())


def _open_zone(folder: Path) -> _Zone | None:
    name = read_small_file(folder / "name") or ""
    energy = read_integer_file(folder / "energy_uj")
    counter = HostCounter.dram_energy_j if name == "dram" else HostCounter.cpu_energy_j
    if energy is None or not (name == "dram" or name.startswith("package")):
        return None
    most = read_integer_file(folder / "max_energy_range_uj") or 0
    return _Zone(folder=folder, counter=counter, wraps_at=most, last=energy)


_MICRO = 1e-6
_JOB = lazy_pattern(r"(.*/job_\d+)(/|\Z)")
_TOTAL = lazy_pattern(r"^(some|full) .*\btotal=(\d+)$", re.MULTILINE)
_OF_NODE = (
    ("cpu", "some", HostCounter.cpu_pressure_s),
    ("memory", "some", HostCounter.memory_pressure_s),
    ("memory", "full", HostCounter.memory_stall_s),
    ("io", "some", HostCounter.io_pressure_s),
    ("io", "full", HostCounter.io_stall_s),
)
_OF_JOB = (
    ("cpu", "some", HostCounter.job_cpu_pressure_s),
    ("memory", "some", HostCounter.job_memory_pressure_s),
    ("io", "some", HostCounter.job_io_pressure_s),
)
_FIELDS = (
    ("cpu.stat", "usage_usec", HostCounter.job_cpu_s, _MICRO),
    ("cpu.stat", "throttled_usec", HostCounter.job_throttled_s, _MICRO),
    ("memory.events", "max", HostCounter.job_memory_limit_hits, 1),
    ("memory.events", "oom_kill", HostCounter.job_oom_kills, 1),
)


def read_node_pressure_stall_times(root: Path = Path("/")) -> dict[HostCounter, float]:
    """Return how long processes of this node waited; empty with a kernel without PSI."""
    files = {name: root / "proc/pressure" / name for name in ("cpu", "memory", "io")}
    return _read_pressure_stall_times(files, _OF_NODE)


def find_job_cgroup(root: Path = Path("/")) -> Path | None:
    """Return the folder of the job's cgroup; None without cgroup version 2.

    It is that of Slurm (`job_123`) around this process, else the process's own.
    """
    text = read_small_file(root / "proc/self/cgroup") or ""
    own = next((line[3:] for line in text.splitlines() if line.startswith("0::")), None)
    if own is None:
        return None
    job = _JOB.match(own)
    folder = root / "sys/fs/cgroup" / (job[1] if job else own).lstrip("/")
    return folder if read_small_file(folder / "cgroup.procs") is not None else None


@dataclass(frozen=True, slots=True)
class JobCgroup:
    """The cgroup of the job that this process belongs to."""

    folder: Path

    def read_usage(self) -> HostSample:
        """Return what the job uses; what its controllers do not count is left out."""
        gauges: dict[HostGauge, float] = {}
        memory = read_integer_file(self.folder / "memory.current")
        if memory is not None:
            gauges[HostGauge.job_memory_bytes] = memory
        anonymous = read_named_numbers(self.folder / "memory.stat").get("anon")
        if anonymous is not None:
            gauges[HostGauge.job_memory_anonymous_bytes] = anonymous
        return HostSample(gauges=gauges, counters=self._read_counters())

    def _read_counters(self) -> dict[HostCounter, float]:
        tables = {file: read_named_numbers(self.folder / file) for file in ("cpu.stat", "memory.events")}
        counters: dict[HostCounter, float] = {
            counter: tables[file][name] * unit
            for file, name, counter, unit in _FIELDS
            if name in tables[file]
        }
        files = {name: self.folder / f"{name}.pressure" for name in ("cpu", "memory", "io")}
        return counters | _read_pressure_stall_times(files, _OF_JOB) | self._read_io_bytes()

    def _read_io_bytes(self) -> dict[HostCounter, float]:
        text = read_small_file(self.folder / "io.stat")
        if not text:
            return {}
        read, written = (
            sum(int(count) for count in re.findall(rf"\b{name}=(\d+)", text)) for name in ("rbytes", "wbytes")
        )
        return {HostCounter.job_read_bytes: read, HostCounter.job_written_bytes: written}


def _read_pressure_stall_times(
    files: Mapping[str, Path], wanted: tuple[tuple[str, str, HostCounter], ...]
) -> dict[HostCounter, float]:
    # The totals of a PSI file by `some` and `full`, in seconds.
    totals = {
        name: {kind: int(us) * _MICRO for kind, us in _TOTAL.findall(read_small_file(file) or "")}
        for name, file in files.items()
    }
    return {counter: totals[name][kind] for name, kind, counter in wanted if kind in totals[name]}
