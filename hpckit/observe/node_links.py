"""The links of this node: NVLink and PCIe by NVML, fabric ports, network cards and NUMA by sysfs.

Read after the measurement rather than before: an idle GPU lowers its PCIe generation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hpckit.model.nodes.links import FabricPort, NetworkInterface, NodeLinks
from hpckit.observe.infiniband import find_ports, is_active
from hpckit.observe.nvml.job_gpus import read_gpu_links
from hpckit.observe.sysfs import folders, numa_node, read_count, read_small
from hpckit.patterns import lazy_pattern

_RATE = lazy_pattern(r"(\d+(?:\.\d+)?) Gb/sec")
"""`400 Gb/sec (4X NDR)`"""


def read_node_links(host: str, environ: Mapping[str, str], root: Path = Path("/")) -> NodeLinks:
    """Return the links of this node and of the job's GPUs; takes milliseconds."""
    nodes = folders(root / "sys/devices/system/node")
    return NodeLinks(
        host=host,
        gpus=read_gpu_links(environ, root),
        ports=_ports(root),
        interfaces=_interfaces(root),
        numa_nodes=sum(bool(re.fullmatch(r"node\d+", node.name)) for node in nodes) or None,
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
                    numa=numa_node(device / "device"),
                )
            )
    return tuple(found)


def _interfaces(root: Path) -> tuple[NetworkInterface, ...]:
    """Return cards that are up; a virtual one has no device, and claims any speed."""
    found = []
    for folder in folders(root / "sys/class/net"):
        if (folder / "device").exists() and read_small(folder / "operstate") == "up":
            speed = read_count(folder / "speed")
            known = speed is not None and speed > 0
            gbit = speed / 1000 if known and speed is not None else None
            found.append(NetworkInterface(name=folder.name, gbit_per_s=gbit))
    return tuple(found)
