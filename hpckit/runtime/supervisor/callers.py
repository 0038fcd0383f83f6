"""Connections to the supervisor from callers that have not yet proved that they know the secret.

Accepts connections and bounds how much of this process strangers may hold.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from hpckit.errors import ChannelError
from hpckit.runtime.channel import tcp
from hpckit.runtime.descriptors import open_file_limit
from hpckit.runtime.threads import await_with_limit
from hpckit.values import dataclass, field

PENDING = 64
"""Maximum number of concurrent handshakes; other callers wait in the kernel's queue."""
SPARE_FILES = 32
"""Left for the record and for starting processes, however many callers there are."""
_PRESSED_S = 1.0
"""How long a handshake may take if others wait: a thousand times what an agent needs."""
_PAUSE_S = 0.1

Attend = Callable[[tcp.Channel], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Peer:
    """One agent that has come.

    `heard_at` is the time of its last message, `told_at` that of the last sign of life sent to it, by the
    loop's clock. `switches` are above its node, `satellite` is the job that brings it if not the run's own,
    `port` where other nodes get data from it; `leaving` says why it takes part in no further round.
    """

    node: str
    node_rank: int
    channel: tcp.Channel
    heard_at: float
    told_at: float = 0.0
    switches: tuple[str, ...] = ()
    satellite: str | None = None
    leaving: str = ""
    port: int = 0


@dataclass(slots=True, kw_only=True)
class AgentListener:
    """The callers at the socket `bound`; `attend` is called for each that knows the secret."""

    bound: socket.socket
    secret: str
    attend: Attend
    _pending: dict[asyncio.Task[None], float] = field(default_factory=dict, init=False)
    _attended: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _room: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def accept_callers(self) -> None:
        """Accept callers until this is cancelled, which closes the socket."""
        loop = asyncio.get_running_loop()
        self.bound.setblocking(False)  # noqa: FBT003  # the socket's own signature
        with self.bound:
            while True:
                await self._await_free_handshake_slot()
                try:
                    connection, _ = await loop.sock_accept(self.bound)
                except OSError:  # the caller has left; or the system has no descriptor left
                    await asyncio.sleep(_PAUSE_S)
                    continue
                await self._start_handshake(connection)

    async def _start_handshake(self, connection: socket.socket) -> None:
        # The lowest free number is given, so it shows how many are left.
        if connection.fileno() >= open_file_limit() - SPARE_FILES:
            connection.close()
            await asyncio.sleep(_PAUSE_S)
            return
        task = asyncio.create_task(self._authenticate_caller(connection))
        self._pending[task] = asyncio.get_running_loop().time()
        task.add_done_callback(self._forget_ended_handshake)

    def _forget_ended_handshake(self, task: asyncio.Task[None]) -> None:
        self._pending.pop(task, None)
        self._room.set()

    async def _await_free_handshake_slot(self) -> None:
        """Wait for a handshake to end; cancel the oldest one if it takes too long."""
        while len(self._pending) >= PENDING:
            oldest, since = next(iter(self._pending.items()))
            left = since + _PRESSED_S - asyncio.get_running_loop().time()
            if left <= 0:
                oldest.cancel()
            self._room.clear()
            await await_with_limit(max(left, _PAUSE_S), self._room.wait())

    async def _authenticate_caller(self, connection: socket.socket) -> None:
        """Let one caller prove itself; turn it away if it does not know the secret."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=tcp.LINE_LIMIT)
        try:
            channel = await tcp.authenticate_caller(reader, writer, self.secret)
        except (ChannelError, OSError):
            writer.close()
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        task = asyncio.ensure_future(self.attend(channel))
        self._attended.add(task)
        task.add_done_callback(self._attended.discard)
