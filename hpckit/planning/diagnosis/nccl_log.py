"""What NCCL's own log says of the network that it uses. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from hpckit.values import dataclass, field

_NETWORK = re.compile(r"NCCL INFO .*?Using network (\S+)")
_CHANNEL = re.compile(r"NCCL INFO Channel .* via ([A-Z0-9]+(?:/[A-Za-z]+)?)")
_VERSION = re.compile(r"NCCL version (\S+)")
_REASON = re.compile(r"NCCL INFO (NET/IB : No device found\.|Failed to open libibverbs\.so[^\n]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTransport:
    """How NCCL connects ranks: its `network` (`IB`, `Socket`, a plugin's name), null if not said.

    `channels` counts its connections by kind (`P2P`, `SHM`, `NET/IB`, `NET/Socket`), as rank 0 sees
    them. `reason` is what NCCL says of a network that it could not use.
    """

    network: str | None = None
    version: str | None = None
    channels: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    @property
    def uses_sockets(self) -> bool:
        """Whether ranks of different nodes talk over TCP."""
        return (self.network or "").lower() == "socket"


def read_nccl_log(lines: Iterable[str]) -> NcclTransport:
    """Return what the lines say; what is missing is null."""
    network = version = None
    reason, channels = "", Counter[str]()
    for line in lines:
        if found := _NETWORK.search(line):
            network = found[1]
        elif found := _CHANNEL.search(line):
            # P2P/CUMEM and P2P/IPC are both P2P.
            kind = found[1] if found[1].startswith("NET/") else found[1].partition("/")[0]
            channels[kind] += 1
        elif found := _VERSION.search(line):
            version = found[1]
        elif found := _REASON.search(line):
            reason = found[1].rstrip(".")
    return NcclTransport(network=network, version=version, channels=dict(channels), reason=reason)
