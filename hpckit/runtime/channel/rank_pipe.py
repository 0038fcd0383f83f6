"""The rank's end of its private line to the agent: an inherited socket pair and a board.

Sends and awaits messages from synchronous code. Neither has a name or a port: only the rank and its agent
hold them, so they need no secret. The board holds the number of the rank's current step and its last exit
statement. It stays exact even if the rank can send no more, or if no process reads the line.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TypeVar

from hpckit.errors import RendezvousError
from hpckit.model.failure import ExitStatement
from hpckit.model.messages import Message, decode_message, encode_message
from hpckit.model.plain import from_plain, to_plain
from hpckit.values import dataclass, field

VARIABLE = "HPCKIT_LINK_FD"
"""Names the inherited file descriptor of the line."""
BOARD_VARIABLE = "HPCKIT_STEP_FD"
"""Names the inherited file descriptor of the board."""
COLLECTIVES_VARIABLE = "HPCKIT_COLLECTIVES_FD"
"""Names that of a socket pair of its own, on which an agent asks a rank for its collectives."""
READY, MOST_BYTES = b"ready\n", 512 * 1024
"""What a rank sends when its thread for that listens, which answers also while the main thread
waits, not if the interpreter stands still; others are not asked. And most bytes of one answer."""

_STEP = struct.Struct("=q")
_FAREWELL_AT = 64
_FAREWELL_BYTES = 4096

M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class AgentLink:
    """The line to the agent. Sending never blocks training for long and never raises."""

    connection: socket.socket
    board: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _rest: bytes = field(default=b"", init=False)

    def send(self, message: Message) -> None:
        """Send one message; do nothing if the agent is gone (its end also ends this process)."""
        with self._lock, contextlib.suppress(OSError):
            self.connection.sendall(encode_message(message) + b"\n")

    def publish_step_to_agent(self, step: int) -> None:
        """Write to the board that this step begins: one system call, so every step can be noted."""
        if self.board is not None:
            os.pwrite(self.board, _STEP.pack(step + 1), 0)

    def note_exit_statement(self, farewell: ExitStatement) -> None:
        """Write this rank's exit statement to the board; the latest one counts."""
        if self.board is not None:
            text = json.dumps(to_plain(farewell)).encode()
            os.pwrite(self.board, text.ljust(_FAREWELL_BYTES), _FAREWELL_AT)

    def wait_for_message(self, kind: type[M], timeout: timedelta) -> M:
        """Return the next message of this kind; raises RendezvousError at the timeout."""
        self.connection.settimeout(timeout.total_seconds())
        try:
            while True:
                message = decode_message(self._receive_line())
                if isinstance(message, kind):
                    return message
        except TimeoutError:
            raise RendezvousError(
                f"no {kind.__name__} came from the agent within {timeout.total_seconds():g} s",
                hint="rank 0 has not bound its store; see its log (`hpckit logs --rank 0`)",
            ) from None
        finally:
            self.connection.settimeout(None)

    def poll(self) -> Message | None:
        """Return the next message if one has arrived; None if not, or if the agent is gone."""
        if b"\n" not in self._rest:
            with contextlib.suppress(OSError):
                self._rest += self.connection.recv(65536, socket.MSG_DONTWAIT)
        line, ended, rest = self._rest.partition(b"\n")
        if not ended:
            return None
        self._rest = rest
        return decode_message(line)

    def _receive_line(self) -> bytes:
        while b"\n" not in self._rest:
            data = self.connection.recv(65536)
            if not data:
                raise RendezvousError("the agent of this node is gone")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def open_agent_link(environ: Mapping[str, str]) -> AgentLink | None:
    """Open the inherited line; None if this process was not started by an agent."""
    number = environ.get(VARIABLE, "")
    if not number.isdecimal():
        return None
    try:
        connection = socket.socket(fileno=int(number))
    except OSError:
        # A wrapper closed inherited descriptors (subprocess does): the run continues without the
        # line.
        return None
    connection.set_inheritable(False)
    return AgentLink(connection, _open_shared_step_file(environ))


def _open_shared_step_file(environ: Mapping[str, str]) -> int | None:
    number = environ.get(BOARD_VARIABLE, "")
    if not number.isdecimal():
        return None
    try:
        os.set_inheritable(int(number), False)  # noqa: FBT003  # the function's own signature
    except OSError:
        return None
    return int(number)


def make_shared_step_file() -> int:
    """Return a new board, an in-memory file without a name; the caller closes it."""
    return os.memfd_create("hpckit-step")


def read_shared_step(board: int) -> int | None:
    """Return the step last noted on a board; None before the first."""
    data = os.pread(board, _STEP.size, 0)
    begun = _STEP.unpack(data)[0] - 1 if len(data) == _STEP.size else -1
    return None if begun < 0 else begun


def read_exit_statement(board: int) -> ExitStatement | None:
    """Return a rank's last exit statement; None if there is none."""
    try:
        text = os.pread(board, _FAREWELL_BYTES, _FAREWELL_AT)
        return from_plain(ExitStatement, json.loads(text))
    except (OSError, ValueError, TypeError, KeyError):
        return None
