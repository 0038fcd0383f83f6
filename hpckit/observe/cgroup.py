"""What the job uses and waits for, from its cgroup (version 2), and the pressure of the node.

The job's cgroup is that of Slurm (`job_123`) around this process, else the process's own. With
cgroup version 1 there is none: then only the node is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hpckit.model.telemetry.vocabulary import HostCounter, HostGauge, HostSample
from hpckit.observe.sysfs import read_count, read_fields, read_small
from hpckit.values import dataclass

_MICRO = 1e-6
_JOB = re.compile(r"(.*/job_\d+)(/|\Z)")
_TOTAL = re.compile(r"^(some|full) .*\btotal=(\d+)$", re.MULTILINE)
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


def pressure_seconds(text: str) -> dict[str, float]:
    """Return the totals of a PSI file by `some` and `full`, in seconds."""
    return {kind: int(total) * _MICRO for kind, total in _TOTAL.findall(text)}


def node_pressure(root: Path = Path("/")) -> dict[HostCounter, float]:
    """Return how long processes of this node waited; empty with a kernel without PSI."""
    files = {name: root / "proc/pressure" / name for name in ("cpu", "memory", "io")}
    return _pressure(files, _OF_NODE)


def job_cgroup(root: Path = Path("/")) -> Path | None:
    """Return the folder of the job's cgroup; None without cgroup version 2."""
    text = read_small(root / "proc/self/cgroup") or ""
    own = next((line[3:] for line in text.splitlines() if line.startswith("0::")), None)
    if own is None:
        return None
    job = _JOB.match(own)
    folder = root / "sys/fs/cgroup" / (job[1] if job else own).lstrip("/")
    return folder if read_small(folder / "cgroup.procs") is not None else None


@dataclass(frozen=True, slots=True)
class JobCgroup:
    """The cgroup of the job that this process belongs to."""

    folder: Path

    def read(self) -> HostSample:
        """Return what the job uses; what its controllers do not count is left out."""
        gauges: dict[HostGauge, float] = {}
        memory = read_count(self.folder / "memory.current")
        if memory is not None:
            gauges[HostGauge.job_memory_bytes] = memory
        anonymous = read_fields(self.folder / "memory.stat").get("anon")
        if anonymous is not None:
            gauges[HostGauge.job_memory_anonymous_bytes] = anonymous
        return HostSample(gauges=gauges, counters=self._counters())

    def _counters(self) -> dict[HostCounter, float]:
        tables = {file: read_fields(self.folder / file) for file in ("cpu.stat", "memory.events")}
        counters: dict[HostCounter, float] = {
            counter: tables[file][name] * unit
            for file, name, counter, unit in _FIELDS
            if name in tables[file]
        }
        files = {name: self.folder / f"{name}.pressure" for name in ("cpu", "memory", "io")}
        return counters | _pressure(files, _OF_JOB) | self._io()

    def _io(self) -> dict[HostCounter, float]:
        text = read_small(self.folder / "io.stat")
        if not text:
            return {}
        read, written = (
            sum(int(count) for count in re.findall(rf"\b{name}=(\d+)", text))
            for name in ("rbytes", "wbytes")
        )
        return {HostCounter.job_read_bytes: read, HostCounter.job_written_bytes: written}


def _pressure(
    files: Mapping[str, Path], wanted: tuple[tuple[str, str, HostCounter], ...]
) -> dict[HostCounter, float]:
    totals = {name: pressure_seconds(read_small(file) or "") for name, file in files.items()}
    return {counter: totals[name][kind] for name, kind, counter in wanted if kind in totals[name]}
