"""Listening sockets that IPv4 and IPv6 callers both reach. It must not accept anybody."""

from __future__ import annotations

import socket


def listener(host: str = "", *, backlog: int = 1024) -> socket.socket:
    """Return a socket that listens on a port of the kernel's choice, on all interfaces or one."""
    if not host and socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
        except OSError:
            # The kernel knows IPv6 but this network has none (containers): IPv4 alone then.
            pass
    return socket.create_server((host, 0), backlog=backlog)


def plain_address(address: str) -> str:
    """Return an IPv4 address that a dual-stack socket shows as `::ffff:10.0.0.1` as it is."""
    return address.removeprefix("::ffff:")
