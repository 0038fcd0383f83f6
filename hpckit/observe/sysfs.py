"""Small files of /proc and /sys, read below an injectable root. Absent or unreadable is None.

Among them all InfiniBand (and RoCE) ports. Counters that a container hides are missing, not zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpckit.model.telemetry.vocabulary import HostCounter, HostGauge, HostSample


def read_small_file(path: Path) -> str | None:
    """Return the text of a file without its line end, or None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_integer_file(path: Path) -> int | None:
    """Return the number in a file, or None if there is none."""
    text = read_small_file(path)
    try:
        return None if text is None else int(text.split()[0])
    except (ValueError, IndexError):
        return None


def read_named_numbers(path: Path) -> dict[str, int]:
    """Return the lines `name number` of a file; none if it cannot be read."""
    found: dict[str, int] = {}
    for line in (read_small_file(path) or "").splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdigit():
            found[name] = int(number)
    return found


def list_folder(path: Path) -> list[Path]:
    """Return what is in a folder, by name; empty if it cannot be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def read_numa_node(device: Path) -> int | None:
    """Return the node of memory next to a device; the kernel's -1 is unknown."""
    node = read_integer_file(device / "numa_node")
    return node if node is not None and node >= 0 else None


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


def find_infiniband_ports(root: Path = Path("/")) -> tuple[Path, ...]:
    """Return the folder of every port of this node."""
    devices = list_folder(root / "sys/class/infiniband")
    return tuple(port for device in devices for port in list_folder(device / "ports"))


def is_infiniband_port_active(port: Path) -> bool:
    """Return whether a port of `find_infiniband_ports` is up."""
    return read_small_file(port / "state") == _ACTIVE


def sum_infiniband_ports(ports: Sequence[Path]) -> HostSample:
    """Return the sums over these ports; nothing without ports."""
    if not ports:
        return HostSample()
    counters: dict[HostCounter, float] = {}
    for counter, names, unit in _SUMS:
        counts = [read_integer_file(port / "counters" / name) for port in ports for name in names]
        known = [count for count in counts if count is not None]
        if known:
            counters[counter] = sum(known) * unit
    active = sum(map(is_infiniband_port_active, ports))
    return HostSample(gauges={HostGauge.infiniband_ports_active: active}, counters=counters)
