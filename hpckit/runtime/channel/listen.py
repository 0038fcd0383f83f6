"""Listening sockets that IPv4 and IPv6 callers both reach, and this host's own addresses.

It must not accept anybody.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

LOOPBACK = "127.0.0.1"

_SIOCGIFADDR = 0x8915
"""Asks for the IPv4 address of an interface (linux/sockios.h)."""
_GLOBAL_SCOPE = "00"

_BACKLOG = 4096
"""All agents of a job call at once; a full queue costs each left out seconds. The kernel may allow
less (net.core.somaxconn)."""


def listener(host: str = "", *, port: int = 0, backlog: int = _BACKLOG) -> socket.socket:
    """Return a socket that listens on this port (0: the kernel chooses), on all interfaces or one.

    `host` is a name or an address of this machine; raises OSError where it is none.
    """
    if not host and socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
        except OSError:
            # The kernel knows IPv6 but this network has none (containers): IPv4 alone then.
            pass
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def plain_address(address: str) -> str:
    """Return an IPv4 address that a dual-stack socket shows as `::ffff:10.0.0.1` as it is."""
    return address.removeprefix("::ffff:")


def is_loopback(address: str) -> bool:
    """Whether an address is good on its own machine alone."""
    return address.startswith("127.") or address == "::1"


def own_addresses(inet6: Path = Path("/proc/net/if_inet6")) -> tuple[str, ...]:
    """Return the addresses of this host that others may reach: no loopback, none of one link."""
    found = [ipaddress.ip_address(text) for text in (*_ipv4(), *_ipv6(inet6))]
    return tuple(str(one) for one in found if not (one.is_loopback or one.is_link_local))


def _ipv4() -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has none
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _ipv6(table: Path) -> list[str]:
    """Return the addresses of global scope; the table's lines: address, index, length, scope."""
    try:
        lines = [line.split() for line in table.read_text().splitlines()]
    except OSError:
        return []
    packed = [bytes.fromhex(words[0]) for words in lines if words[3] == _GLOBAL_SCOPE]
    return [socket.inet_ntop(socket.AF_INET6, one) for one in packed]
