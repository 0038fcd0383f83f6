"""Energy of processors and memory, from the kernel's powercap files (RAPL).

Most kernels let only root read them: then there is none. The hardware counts in a register of 32
bits that wraps around within minutes to hours; what is returned never does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hpckit.model.telemetry.vocabulary import HostCounter
from hpckit.observe.sysfs import folders, read_count, read_small

_JOULES = 1e-6
"""The files count microjoules."""


@dataclass(slots=True, kw_only=True)
class _Zone:
    folder: Path
    counter: HostCounter
    wraps_at: int
    last: int
    total: int = 0

    def read(self) -> int:
        """Return the microjoules since the zone was found."""
        now = read_count(self.folder / "energy_uj")
        if now is not None:
            grown = now - self.last
            self.total += grown if grown >= 0 else grown + self.wraps_at
            self.last = now
        return self.total


@dataclass(slots=True)
class RaplReader:
    """The energy since this reader was made. Read it at least once a minute."""

    root: Path = Path("/")
    _zones: list[_Zone] = field(init=False)

    def __post_init__(self) -> None:
        found = (_zone(folder) for folder in _zone_folders(self.root))
        self._zones = [zone for zone in found if zone is not None]

    def read(self) -> dict[HostCounter, float]:
        """Return joules by counter, the sum over all packages; empty if none can be read."""
        sums: dict[HostCounter, float] = {}
        for zone in self._zones:
            sums[zone.counter] = sums.get(zone.counter, 0) + zone.read() * _JOULES
        return sums


def _zone_folders(root: Path) -> list[Path]:
    packages = [
        one for one in folders(root / "sys/class/powercap") if one.name.startswith("intel-rapl:")
    ]
    inner = [zone for one in packages for zone in folders(one) if zone.name.startswith("intel-")]
    # A zone shows both in the folder itself and in that of its package.
    return list({one.name: one for one in [*packages, *inner]}.values())


def _zone(folder: Path) -> _Zone | None:
    name = read_small(folder / "name") or ""
    energy = read_count(folder / "energy_uj")
    counter = HostCounter.dram_energy_j if name == "dram" else HostCounter.cpu_energy_j
    if energy is None or not (name == "dram" or name.startswith("package")):
        return None
    most = read_count(folder / "max_energy_range_uj") or 0
    return _Zone(folder=folder, counter=counter, wraps_at=most, last=energy)
