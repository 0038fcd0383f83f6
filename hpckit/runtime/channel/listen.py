"""Listening sockets that both IPv4 and IPv6 callers can reach, and this host's own addresses."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from hpckit.observe.sysfs import read_small_file

LOOPBACK = "127.0.0.1"

_SIOCGIFADDR = 0x8915
"""Asks for the IPv4 address of an interface (linux/sockios.h)."""
_GLOBAL_SCOPE = "00"

_BACKLOG = 4096
"""All agents of a job connect at once.

With a full queue, each agent left out loses seconds. The kernel may allow less (net.core.somaxconn).
"""


def open_listening_socket(host: str = "", *, port: int = 0, backlog: int = _BACKLOG) -> socket.socket:
    """Return a socket that listens on this port (0: the kernel chooses), on all interfaces or one.

    `host` is a name or an address of this machine. Raises OSError if it is not.
    """
    if not host and socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
        except OSError:
            # The kernel supports IPv6 but this network does not (containers): use IPv4 only.
            pass
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def to_plain_ipv4_address(address: str) -> str:
    """Return an address in plain IPv4 form if a dual-stack socket shows it as `::ffff:10.0.0.1`."""
    return address.removeprefix("::ffff:")


def is_loopback(address: str) -> bool:
    """Return whether an address is only valid on its own machine."""
    return address.startswith("127.") or address == "::1"


def list_own_addresses(inet6: Path = Path("/proc/net/if_inet6")) -> tuple[str, ...]:
    """Return the addresses by which other hosts may reach this one.

    Leaves out loopback and link-local addresses.
    """
    found = [ipaddress.ip_address(text) for text in _list_interfaces_by_address(inet6)]
    return tuple(str(address) for address in found if not (address.is_loopback or address.is_link_local))


def list_own_names_and_addresses(node: str | None) -> list[str]:
    """Return the names and addresses by which other nodes may reach this one, best first."""
    names = filter(None, [node, socket.gethostname()])
    return list(dict.fromkeys([*names, *list_own_addresses()]))


def interface_if_hostname_unreachable(address: str) -> str | None:
    """Return the interface of an address, if the name of this host does not lead other hosts here.

    Other hosts could not reach a library that listens at the host's name: the name stands for a
    loopback address (Debian writes 127.0.1.1 into /etc/hosts), or for no address of this host.
    """
    interfaces = _list_interfaces_by_address()
    try:
        named = [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        named = []
    heard = next((one for one in named if is_loopback(one) or one in interfaces), LOOPBACK)
    return interfaces.get(address) if is_loopback(heard) else None


def _list_interfaces_by_address(inet6: Path = Path("/proc/net/if_inet6")) -> dict[str, str]:
    return {**_list_ipv4_interfaces(), **_list_ipv6_interfaces(inet6)}


def _list_ipv4_interfaces() -> dict[str, str]:
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has none
            found[socket.inet_ntoa(answer[20:24])] = name
    return found


def _list_ipv6_interfaces(table: Path) -> dict[str, str]:
    """Return those of global scope. Columns: address, index, length, scope, flags, interface."""
    lines = [line.split() for line in (read_small_file(table) or "").splitlines()]
    return {
        socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])): words[-1]
        for words in lines
        if words[3] == _GLOBAL_SCOPE
    }
