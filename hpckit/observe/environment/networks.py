"""Networks that NCCL could use on this node, from /sys, and its plugins on the library path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpckit.model.environment.facts import NetworkFacts
from hpckit.model.telemetry.vocabulary import HostGauge
from hpckit.observe.infiniband import find_ports, read_ports
from hpckit.observe.sysfs import folders

_PLUGIN = "libnccl-net*.so*"
_FABRIC = "libfabric.so*"
_USUAL = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
"""Searched after LD_LIBRARY_PATH, together with where AWS installs its libraries."""
_OF_AWS = (
    *("opt/amazon/efa/lib", "opt/amazon/efa/lib64", "opt/aws-ofi-nccl/lib"),
    *("opt/amazon/ofi-nccl/lib", "opt/amazon/ofi-nccl/lib64"),
    *("opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "opt/amazon/ofi-nccl/lib/aarch64-linux-gnu"),
)


def read_networks(environ: Mapping[str, str], root: Path = Path("/")) -> NetworkFacts:
    """Return which networks there are, and NCCL's plugins for them.

    Plugins are searched on LD_LIBRARY_PATH and in the usual folders of libraries. EFA devices are
    counted apart: they appear among those of InfiniBand, but NCCL uses them by a plugin alone.
    """
    devices = folders(root / "sys/class/infiniband")
    efa = [one for one in devices if _driver(one) == "efa"]
    ports = [port for port in find_ports(root) if port.parent.parent not in efa]
    active = read_ports(ports).gauges.get(HostGauge.infiniband_ports_active, 0)
    places = _library_folders(environ, root)
    plugins = [str(file) for place in places for file in _files(place, _PLUGIN)]
    fabric = next((str(file) for place in places for file in _files(place, _FABRIC)), None)
    return NetworkFacts(
        infiniband_ports=int(active),
        efa_devices=len(efa),
        net_plugins=tuple(dict.fromkeys(plugins)),
        libfabric=fabric,
    )


def _driver(device: Path) -> str:
    """Return the name of a device's kernel driver; empty if it is not shown."""
    link = device / "device" / "driver"
    return link.resolve().name if link.exists() else ""


def _library_folders(environ: Mapping[str, str], root: Path) -> list[Path]:
    named = [Path(one) for one in environ.get("LD_LIBRARY_PATH", "").split(":") if one]
    return [*named, *(root / one for one in (*_OF_AWS, *_USUAL))]


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
