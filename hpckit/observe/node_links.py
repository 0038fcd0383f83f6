"""The links of this node: NVLink and PCIe by NVML, fabric ports, network cards and NUMA by sysfs.

Read after the measurement rather than before: an idle GPU lowers its PCIe generation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpckit.model.interconnect.node_links import (
    FabricPort,
    GpuLinks,
    NetworkInterface,
    NodeLinks,
)
from hpckit.observe.infiniband import find_ports, is_active
from hpckit.observe.nvml.job_gpus import (
    MOST_NVLINKS,
    job_handles,
    opened_nvml,
    pci_folder,
    tried,
)
from hpckit.observe.sysfs import folders, read_count, read_small

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
"""`400 Gb/sec (4X NDR)`"""


def read_node_links(host: str, environ: Mapping[str, str], root: Path = Path("/")) -> NodeLinks:
    """Return the links of this node and of the job's GPUs; takes milliseconds."""
    return NodeLinks(
        host=host,
        gpus=_read_gpus(environ, root),
        ports=_ports(root),
        interfaces=_interfaces(root),
        numa_nodes=_numa_nodes(root),
    )


def _ports(root: Path) -> tuple[FabricPort, ...]:
    found = []
    for port in find_ports(root):
        device = port.parent.parent
        if is_active(port):
            rate = _RATE.match(read_small(port / "rate") or "")
            found.append(
                FabricPort(
                    name=f"{device.name}/{port.name}",
                    gbit_per_s=float(rate[1]) if rate else None,
                    numa=_numa(device / "device"),
                )
            )
    return tuple(found)


def _interfaces(root: Path) -> tuple[NetworkInterface, ...]:
    """Return cards that are up; a virtual one has no device, and claims any speed."""
    found = []
    for one in folders(root / "sys/class/net"):
        if (one / "device").exists() and read_small(one / "operstate") == "up":
            speed = read_count(one / "speed")
            known = speed is not None and speed > 0
            gbit = speed / 1000 if known and speed is not None else None
            found.append(NetworkInterface(name=one.name, gbit_per_s=gbit))
    return tuple(found)


def _numa_nodes(root: Path) -> int | None:
    nodes = folders(root / "sys/devices/system/node")
    return sum(bool(re.fullmatch(r"node\d+", one.name)) for one in nodes) or None


def _numa(device: Path) -> int | None:
    """Return the node of memory next to a device; the kernel's -1 is unknown."""
    node = read_count(device / "numa_node")
    return node if node is not None and node >= 0 else None


def _read_gpus(environ: Mapping[str, str], root: Path) -> tuple[GpuLinks, ...] | None:
    with opened_nvml() as nvml:
        handles = None if nvml is None else job_handles(nvml, environ)
        return None if handles is None else tuple(_gpu(nvml, one, root) for one in handles.values())


def _gpu(nvml: Any, handle: Any, root: Path) -> GpuLinks:
    up, down = _nvlinks(nvml, handle)
    capability = tried(nvml, partial(nvml.nvmlDeviceGetCudaComputeCapability, handle))
    return GpuLinks(
        name=tried(nvml, partial(nvml.nvmlDeviceGetName, handle)) or "unknown",
        capability=capability and float(f"{capability[0]}.{capability[1]}"),
        nvlinks=up,
        nvlinks_down=down,
        pcie_generation=tried(nvml, partial(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)),
        pcie_generation_max=tried(nvml, partial(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)),
        pcie_width=tried(nvml, partial(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle)),
        pcie_width_max=tried(nvml, partial(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)),
        numa=_gpu_numa(nvml, handle, root),
    )


def _nvlinks(nvml: Any, handle: Any) -> tuple[int, int]:
    """Return how many NVLinks are up, and down.

    A GPU none of whose links is up has no bridge: nothing of it is down.
    """
    states = [
        tried(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, link))
        for link in range(MOST_NVLINKS)
    ]
    up = sum(bool(one) for one in states)
    return up, (sum(one is not None for one in states) - up if up else 0)


def _gpu_numa(nvml: Any, handle: Any, root: Path) -> int | None:
    info = tried(nvml, partial(nvml.nvmlDeviceGetPciInfo, handle))
    if info is None:
        return None
    return _numa(pci_folder(root, str(info.busId)))
