"""What an agent and a fork server say to each other over a Unix socket, in packets.

An agent sends a ForkOrder with the rank's open files; the server answers with ForkAnswers: the
process it forked, and later how that ended.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from hpckit.model.plain import from_plain, to_plain
from hpckit.values import dataclass, field

LISTENER = "HPCKIT_FORK_SERVER_FD"
"""For the fork server, and visible in all it forked: the descriptor of the socket it serves."""
OWNER = "HPCKIT_FORK_SERVER_OWNER_FD"
"""For the fork server: a pipe that ends when the process that started it does."""

_CREDENTIALS = struct.Struct("iII")
_MOST_BYTES = 65536
_MOST_FILES = 16
_VARIABLES_FD = 100
"""Where a forked rank keeps its variables: /proc shows those of the fork server as its own."""
_VARIABLES_NAME = "hpckit-variables"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrder:
    """A rank to start. `lines` are the variables that name open files, in the order of the files.

    The first two files are the rank's variables and its log. `cpus` are those it may run on.
    With `grace_s` it has no files, and is to end what earlier ranks have left behind; the answer's
    code says how much of it stays.
    """

    number: int
    python: str = ""
    folder: str = ""
    cpus: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()
    grace_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkAnswer:
    """About the order of this number: its process, or how it ended (negative: the signal)."""

    number: int
    pid: int | None = None
    code: int | None = None


@dataclass(slots=True, kw_only=True)
class ReceivedOrder:
    """An order, and the files that came with it."""

    order: ForkOrder
    files: list[int] = field(default_factory=list)

    def close_files(self) -> None:
        """Close the files."""
        for file in self.files:
            os.close(file)
        self.files.clear()


def send_fork_order(connection: socket.socket, order: ForkOrder, files: tuple[int, ...]) -> None:
    """Send an order with its files; raises OSError."""
    socket.send_fds(connection, [json.dumps(to_plain(order)).encode()], list(files))


def receive_fork_order(connection: socket.socket) -> ReceivedOrder | None:
    """Return the next order; None at the end, or if it is none. Raises OSError."""
    data, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, _MOST_FILES, socket.MSG_CMSG_CLOEXEC)
    try:
        order = from_plain(ForkOrder, json.loads(data))
        if len(files) == (len(order.lines) + 2 if order.grace_s is None else 0):
            return ReceivedOrder(order=order, files=list(files))
    except (ValueError, TypeError):
        pass
    for file in files:
        os.close(file)
    return None


def read_peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end: of a client, or of who began to listen."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(told)
    return pid, user


def write_environment_to_memory_file(variables: Mapping[str, str]) -> int:
    """Return a new file in memory with these variables, in the form of /proc/PID/environ."""
    file = os.memfd_create(_VARIABLES_NAME)
    text = b"".join(os.fsencode(f"{name}={value}\0") for name, value in variables.items())
    with os.fdopen(os.dup(file), "wb") as opened:
        opened.write(text)
    return file


def publish_environment_file(file: int) -> dict[str, str]:
    """Keep such a file where `read_process_environment` looks; return what it says."""
    if file != _VARIABLES_FD:
        os.dup2(file, _VARIABLES_FD, inheritable=False)
        os.close(file)
    return parse_environment_block(Path(f"/proc/self/fd/{_VARIABLES_FD}").read_bytes())


def read_process_environment(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with; empty if it cannot be read."""
    at = Path(f"/proc/{pid}")
    try:
        found = parse_environment_block((at / "environ").read_bytes())
    except OSError:
        return {}
    if LISTENER not in found:
        return found
    file = at / "fd" / str(_VARIABLES_FD)
    try:
        if _VARIABLES_NAME in str(file.readlink()):
            return parse_environment_block(file.read_bytes())
    except OSError:
        pass
    return found


def parse_environment_block(text: bytes) -> dict[str, str]:
    """Return the variables of a text in the form of /proc/PID/environ."""
    pairs = (entry.partition("=") for entry in os.fsdecode(text).split("\0"))
    return {name: value for name, equals, value in pairs if equals}
