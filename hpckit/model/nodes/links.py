"""What one node says of its own links: NVLink, PCIe, InfiniBand, network interfaces, NUMA.

None is unknown, and never the same as absent: nothing may be concluded from it.
"""

from __future__ import annotations

from hpckit.model.environment.facts import GpuFacts
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricPort:
    """A port of InfiniBand or RoCE that is up: its rate in Gbit/s, and the NUMA node of its slot.

    A rate of None: the file could not be read.
    """

    name: str
    gbit_per_s: float | None = None
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """A real network card that is up; virtual interfaces have no speed, whatever they claim."""

    name: str
    gbit_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLinks:
    """All links of a node, as a process on it sees them; None for `gpus`: nobody could say."""

    host: str
    gpus: tuple[GpuFacts, ...] | None = None
    ports: tuple[FabricPort, ...] = ()
    interfaces: tuple[NetworkInterface, ...] = ()
    numa_nodes: int | None = None
