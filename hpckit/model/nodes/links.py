"""What one node says of its own links: NVLink, PCIe, InfiniBand, network interfaces, NUMA.

None is unknown, and never the same as absent: nothing may be concluded from it.
"""

from __future__ import annotations

from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLinks:
    """The links of a GPU: NVLinks that are up and down, PCIe generation and width.

    `capability` is its compute capability such as 9.0: NVLinks are as fast as their GPU is new. The
    current PCIe generation is lower while a GPU is idle; its width is not. `numa` is the node
    of memory that its PCIe slot belongs to.
    """

    name: str
    capability: float | None = None
    nvlinks: int | None = None
    nvlinks_down: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    numa: int | None = None


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
    gpus: tuple[GpuLinks, ...] | None = None
    ports: tuple[FabricPort, ...] = ()
    interfaces: tuple[NetworkInterface, ...] = ()
    numa_nodes: int | None = None
