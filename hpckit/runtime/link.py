"""The rank's end of its private line to the agent: a socket pair inherited at birth.

Responsible for sending and awaiting messages from synchronous code; it must not interpret them.
The pair has no name and no port: only the rank and its agent hold an end, so it needs no secret.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from hpckit.errors import RendezvousError
from hpckit.runtime.messages import Message, decode, encode

VARIABLE = "HPCKIT_LINK_FD"
"""Names the inherited file descriptor."""

M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class AgentLink:
    """The line to the agent. Sending never blocks training for long and never raises."""

    connection: socket.socket
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _rest: bytes = field(default=b"", init=False)

    def send(self, message: Message) -> None:
        """Send one message; silently nothing where the agent is gone (it ends us anyway)."""
        with self._lock, contextlib.suppress(OSError):
            self.connection.sendall(encode(message) + b"\n")

    def wait_for(self, kind: type[M], timeout: timedelta) -> M:
        """Return the next message of this kind; raises RendezvousError at the timeout."""
        self.connection.settimeout(timeout.total_seconds())
        try:
            while True:
                message = decode(self._line())
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
        """Return the next message if one has come; None otherwise, and where the agent is gone."""
        if b"\n" not in self._rest:
            with contextlib.suppress(OSError):
                self._rest += self.connection.recv(65536, socket.MSG_DONTWAIT)
        line, ended, rest = self._rest.partition(b"\n")
        if not ended:
            return None
        self._rest = rest
        return decode(line)

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            data = self.connection.recv(65536)
            if not data:
                raise RendezvousError("the agent of this node is gone")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def open_link(environ: Mapping[str, str]) -> AgentLink | None:
    """Open the inherited line; None where this process was not started by an agent."""
    number = environ.get(VARIABLE, "")
    if not number.isdecimal():
        return None
    try:
        connection = socket.socket(fileno=int(number))
    except OSError:
        # A wrapper closed inherited descriptors (subprocess does): the run goes on without.
        return None
    connection.set_inheritable(False)
    return AgentLink(connection)
