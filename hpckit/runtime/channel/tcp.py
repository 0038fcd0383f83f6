"""The control channel between the supervisor and its agents: TCP, both sides authenticated.

Frames and authenticates messages; it does not know what they mean. Both sides prove that they know
the attempt's secret (HMAC-SHA256 over fresh nonces). Every line carries a MAC over a session key,
the direction and its number, so that no line can be injected, replayed or reflected. Contents are
not encrypted: they are ranks, steps and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hmac
import json
import secrets
import socket
import termios
from collections.abc import Sequence

from hpckit.errors import ChannelError
from hpckit.model.messages import Message, decode_message, encode_message
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import read_json
from hpckit.runtime.channel.listen import to_plain_ipv4_address
from hpckit.values import dataclass, field

LINE_LIMIT = 1 << 20
HANDSHAKE_S = 10.0
_NEXT_HOST_S = 3.0


def new_secret() -> str:
    """Return a fresh secret for one attempt: 32 random bytes as hex."""
    return secrets.token_hex(32)


def _compute_mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256").hex().encode()


@dataclass(slots=True, kw_only=True)
class Channel:
    """One authenticated connection.

    `peer` is the other side's address as seen from here, `here` the address by which it reaches us.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: bytes
    sends_as: bytes
    hears_as: bytes
    peer: str
    here: str
    _sent: int = field(default=0, init=False)
    _heard: int = field(default=0, init=False)

    async def send(self, message: Message) -> None:
        """Send one message; raises ConnectionError if the other side is gone."""
        self.send_without_waiting(message)
        await self.writer.drain()

    def send_without_waiting(self, message: Message) -> None:
        """Send one small message without waiting until the other side takes it."""
        self.send_encoded_without_waiting(encode_message(message))

    def send_encoded_without_waiting(self, body: bytes) -> None:
        """Post a message that is already encoded, because many peers get the same one."""
        mac = _compute_mac(self.key, self.sends_as, b"%d" % self._sent, body)
        self._sent += 1
        self.writer.write(mac + b" " + body + b"\n")

    async def receive(self) -> Message | None:
        """Return the next message, None at the end; raises ChannelError for a forged line.

        None stands for any end of the connection: a dead host behind a router is `No route to host`.
        """
        try:
            line = await self.reader.readline()
        except (OSError, ValueError):
            return None
        if not line.endswith(b"\n"):
            return None
        mac, _, body = line[:-1].partition(b" ")
        wanted = _compute_mac(self.key, self.hears_as, b"%d" % self._heard, body)
        if not hmac.compare_digest(mac, wanted):
            raise ChannelError(f"a line from {self.peer} is not signed by this attempt's secret")
        self._heard += 1
        return decode_message(body)

    def has_unread_data(self) -> bool:
        """Return whether the other side has sent something that this process has not read yet."""
        return any(self._query_kernel_buffer_size(termios.FIONREAD) or ())

    def is_all_acknowledged(self) -> bool:
        """Return whether the other side's kernel has received all that this side has sent."""
        under_way = self._query_kernel_buffer_size(termios.TIOCOUTQ)
        return under_way is not None and not any(under_way)

    def _query_kernel_buffer_size(self, request: int) -> bytes | None:
        """Return how much the kernel holds of what came, or of what was sent; None if closed."""
        connection = self.writer.get_extra_info("socket")
        try:
            return fcntl.ioctl(connection.fileno(), request, bytes(4))
        except (OSError, ValueError):
            return None

    def abort(self) -> None:
        """Drop the connection, without waiting for unsent data."""
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close the connection; never raises if it is already gone."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def authenticate_caller(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str
) -> Channel:
    """Authenticate a caller; raises ChannelError if it does not know the secret."""
    key, ours = bytes.fromhex(secret), secrets.token_hex(16).encode()
    writer.write(ours + b"\n")
    theirs, _, proof = (await _read_handshake_line(reader)).partition(b" ")
    if not hmac.compare_digest(proof, _compute_mac(key, b"agent", ours, theirs)):
        raise ChannelError(f"a caller from {_peer_address(writer)} does not know this attempt's secret")
    writer.write(_compute_mac(key, b"supervisor", theirs, ours) + b"\n")
    await writer.drain()
    return _build_channel(reader, writer, _compute_mac(key, b"session", ours, theirs), server=True)


async def connect_to_supervisor(host: str, port: int, secret: str) -> Channel:
    """Connect to the supervisor and authenticate both sides; raises OSError or ChannelError."""
    async with asyncio.timeout(HANDSHAKE_S):
        reader, writer = await asyncio.open_connection(host, port, limit=LINE_LIMIT)
    try:
        key = await _authenticate_to_supervisor(reader, writer, bytes.fromhex(secret))
    except BaseException:
        writer.close()
        raise
    return _build_channel(reader, writer, key, server=False)


async def connect_to_any_address(hosts: Sequence[str], port: int, secret: str) -> Channel:
    """Connect to the supervisor by one of these names and addresses, the best first.

    Each is tried when the one before has failed, or has not answered for a while: a name that does
    not resolve may take long to fail. Raises ChannelError that lists how each of them failed.
    """
    left, calls, problems = list(hosts), dict[asyncio.Task[Channel], str](), list[str]()
    try:
        while left or calls:
            if left:
                host = left.pop(0)
                calls[asyncio.create_task(connect_to_supervisor(host, port, secret))] = host
            limit_s = _NEXT_HOST_S if left else None
            await asyncio.wait(calls, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            for call in [call for call in calls if call.done()]:
                host, error = calls.pop(call), call.exception()
                if error is None:
                    return call.result()
                if not isinstance(error, OSError | ChannelError):
                    raise error
                problems.append(f"{host}: {str(error) or type(error).__name__}")
    finally:
        for call in calls:
            call.cancel()
    raise ChannelError("; ".join(problems))


def supervisor_answers(paths: AttemptPaths) -> bool:
    """Return whether an attempt's supervisor answers, and proves that it knows the secret.

    A connection alone proves nothing: a frozen process accepts connections too, and its port may
    belong to another process by now.
    """
    try:
        address, secret = read_json(paths.address), paths.secret.read_text().strip()
        return asyncio.run(_can_connect(address["hosts"], address["port"], secret))
    except (OSError, ValueError):
        return False


async def _can_connect(hosts: Sequence[str], port: int, secret: str) -> bool:
    try:
        channel = await connect_to_any_address(hosts, port, secret)
    except ChannelError:
        return False
    await channel.close()
    return True


async def _authenticate_to_supervisor(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes
) -> bytes:
    """Do the caller's half of the handshake and return the session key."""
    ours = secrets.token_hex(16).encode()
    theirs = await _read_handshake_line(reader)
    writer.write(ours + b" " + _compute_mac(key, b"agent", theirs, ours) + b"\n")
    if not hmac.compare_digest(
        await _read_handshake_line(reader), _compute_mac(key, b"supervisor", ours, theirs)
    ):
        raise ChannelError(f"{_peer_address(writer)} does not know this attempt's secret")
    return _compute_mac(key, b"session", theirs, ours)


async def _read_handshake_line(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            line = await reader.readline()
    except (OSError, ValueError):
        raise ChannelError("a peer did not complete the handshake") from None
    if not line.endswith(b"\n"):
        raise ChannelError("a peer left during the handshake")
    return line[:-1]


def _build_channel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, *, server: bool
) -> Channel:
    _enable_keep_alive(writer.get_extra_info("socket"))
    sides = (b"supervisor", b"agent") if server else (b"agent", b"supervisor")
    return Channel(
        reader=reader,
        writer=writer,
        key=key,
        sends_as=sides[0],
        hears_as=sides[1],
        peer=_peer_address(writer),
        here=_socket_address(writer, "sockname"),
    )


def _peer_address(writer: asyncio.StreamWriter) -> str:
    return _socket_address(writer, "peername")


def _socket_address(writer: asyncio.StreamWriter, side: str) -> str:
    address = writer.get_extra_info(side)
    return to_plain_ipv4_address(str(address[0])) if address else "an unknown address"


def _enable_keep_alive(connection: socket.socket) -> None:
    """Let the kernel notice a vanished peer within about half a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    # Keep-alive pauses while data is in flight, and 15 retries then take a quarter of an hour.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)


def format_supervisor_address(hosts: list[str], port: int) -> str:
    """Return what the supervisor publishes: names and addresses to try in order, and a port."""
    return json.dumps({"hosts": hosts, "port": port}) + "\n"
