"""Traffic and errors of all InfiniBand (and RoCE) ports, from /sys/class/infiniband.

Counters of ports that a container does not show are missing, not zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpckit.model.telemetry.vocabulary import HostCounter, HostGauge, HostSample
from hpckit.observe.sysfs import folders, read_count, read_small

WORD_BYTES = 4
"""`port_xmit_data` and `port_rcv_data` count 32-bit words (octets divided by 4)."""

_ACTIVE = "4: ACTIVE"
_ERRORS = (
    *("symbol_error", "port_rcv_errors", "port_xmit_discards", "local_link_integrity_errors"),
    *("excessive_buffer_overrun_errors", "port_rcv_remote_physical_errors"),
)
_SUMS: tuple[tuple[HostCounter, tuple[str, ...], int], ...] = (
    (HostCounter.infiniband_tx_bytes, ("port_xmit_data",), WORD_BYTES),
    (HostCounter.infiniband_rx_bytes, ("port_rcv_data",), WORD_BYTES),
    (HostCounter.infiniband_errors, _ERRORS, 1),
    (HostCounter.infiniband_links_downed, ("link_downed",), 1),
)


def find_ports(root: Path = Path("/")) -> tuple[Path, ...]:
    """Return the folder of every port of this node."""
    devices = folders(root / "sys/class/infiniband")
    return tuple(port for device in devices for port in folders(device / "ports"))


def is_active(port: Path) -> bool:
    """Return whether a port of `find_ports` is up."""
    return read_small(port / "state") == _ACTIVE


def read_ports(ports: Sequence[Path]) -> HostSample:
    """Return the sums over these ports; nothing without ports."""
    if not ports:
        return HostSample()
    counters: dict[HostCounter, float] = {}
    for counter, names, unit in _SUMS:
        counts = [read_count(port / "counters" / name) for port in ports for name in names]
        known = [count for count in counts if count is not None]
        if known:
            counters[counter] = sum(known) * unit
    active = sum(map(is_active, ports))
    return HostSample(gauges={HostGauge.infiniband_ports_active: active}, counters=counters)
