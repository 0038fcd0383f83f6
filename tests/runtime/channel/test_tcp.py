"""Promises of the control channel, over real loopback connections."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hpckit.errors import ChannelError
from hpckit.model import messages
from hpckit.runtime.channel import tcp
from hpckit.runtime.channel.listen import list_own_addresses, open_listening_socket

Talk = Callable[[tcp.Channel], Awaitable[None]]


async def _serve(secret: str, outcome: asyncio.Future[object]) -> tuple[asyncio.Server, int]:
    """Listen once; the outcome is what the caller said first, or the error."""

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            channel = await tcp.authenticate_caller(reader, writer, secret)
            outcome.set_result(await channel.receive())
            await channel.send(messages.Shutdown())
            await channel.close()
        except ChannelError as error:
            outcome.set_result(error)
            writer.close()

    server = await asyncio.start_server(welcome, "127.0.0.1", 0, limit=tcp.LINE_LIMIT)
    return server, server.sockets[0].getsockname()[1]


async def _call(server_secret: str, client_secret: str, talk: Talk) -> object:
    outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    server, port = await _serve(server_secret, outcome)
    try:
        channel = await tcp.connect_to_supervisor("127.0.0.1", port, client_secret)
        await talk(channel)
        await channel.close()
    except (ChannelError, ConnectionError):
        pass
    finally:
        server.close()
    return await asyncio.wait_for(outcome, 5)


HELLO = messages.Hello(node="n1", node_rank=0, pid=1)


def test_channel_carries_messages_both_ways() -> None:
    """Who knows the secret is heard, and hears."""
    secret, heard = tcp.new_secret(), []

    async def talk(channel: tcp.Channel) -> None:
        await channel.send(HELLO)
        heard.append(await channel.receive())

    assert asyncio.run(_call(secret, secret, talk)) == HELLO
    assert heard == [messages.Shutdown()]


def test_channel_turns_away_who_does_not_know_the_secret() -> None:
    """A wrong secret ends in the handshake, on both sides."""

    async def talk(channel: tcp.Channel) -> None:
        await channel.send(HELLO)

    outcome = asyncio.run(_call(tcp.new_secret(), tcp.new_secret(), talk))
    assert isinstance(outcome, ChannelError)
    assert "does not know" in str(outcome)


def test_channel_refuses_a_forged_line() -> None:
    """A line signed with another key, or sent twice, is an error and not a message."""
    secret = tcp.new_secret()

    async def forge(channel: tcp.Channel) -> None:
        channel.writer.write(b"0" * 64 + b" " + messages.encode_message(HELLO) + b"\n")
        await channel.writer.drain()

    async def replay(channel: tcp.Channel) -> None:
        channel._sent = 1  # noqa: SLF001  # the second line's number on the first line
        await channel.send(HELLO)

    async def reflect(channel: tcp.Channel) -> None:
        channel.sends_as = channel.hears_as
        await channel.send(HELLO)

    for attack in (forge, replay, reflect):
        outcome = asyncio.run(_call(secret, secret, attack))
        assert isinstance(outcome, ChannelError), attack
        assert "not signed" in str(outcome)


def test_channel_is_not_held_up_by_a_silent_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that says nothing (a port scanner) is dropped after the handshake's time."""
    monkeypatch.setattr(tcp, "HANDSHAKE_S", 0.1)

    async def scan() -> object:
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        server, port = await _serve(tcp.new_secret(), outcome)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        said = await asyncio.wait_for(outcome, 5)
        writer.close()
        server.close()
        return said

    assert isinstance(asyncio.run(scan()), ChannelError)


@pytest.mark.parametrize("line", [b"", b"{}", b'{"type":"Nothing"}', b'{"type":"Hello"}', b"[1]"])
def test_messages_refuse_what_is_none(line: bytes) -> None:
    """Anything that is not a message is a ChannelError."""
    with pytest.raises(ChannelError):
        messages.decode_message(line)


def test_messages_survive_the_wire() -> None:
    """Encoding and decoding are inverse, nested records included."""
    from hpckit.model.failure import RankExit  # noqa: PLC0415

    ended = messages.RankEnded(round=1, exit=RankExit(rank=2, node="n", code=None, signal="SIGHUP"))
    assert messages.decode_message(messages.encode_message(ended)) == ended


def test_channel_ends_however_its_connection_does() -> None:
    """An error of the network that is no ConnectionError (No route to host) is an end, too."""

    async def lose() -> list[object]:
        said: list[object] = []
        for number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNRESET):
            reader = asyncio.StreamReader()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            channel = tcp.Channel(
                reader=reader, writer=writer, key=b"", sends_as=b"", hears_as=b"", peer="n2", here="127.0.0.1"
            )
            reader.set_exception(OSError(number, "as the kernel has it"))
            said.append(await channel.receive())
            await channel.close()
        return said

    with open_listening_socket("127.0.0.1") as bound:
        port = bound.getsockname()[1]
        assert asyncio.run(lose()) == [None] * 4


def test_supervisor_is_reached_under_any_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that does not resolve, and one where nothing answers, cost a moment each."""
    monkeypatch.setattr(tcp, "_NEXT_HOST_S", 0.2)

    async def call(secret: str) -> object:
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        server, port = await _serve(secret, outcome)
        # Nothing answers on this address; its neighbour is taken by nobody, and refuses.
        hosts = ["no-such-name.invalid", "127.0.0.77", "127.0.0.1"]
        channel = await tcp.connect_to_any_address(hosts, port, secret)
        await channel.send(HELLO)
        said = await asyncio.wait_for(outcome, 5)
        await channel.close()
        server.close()
        return said

    assert asyncio.run(call(tcp.new_secret())) == HELLO


def test_supervisor_that_is_not_reached_has_a_reason_for_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the error itself has no text, as a timeout."""
    monkeypatch.setattr(tcp, "HANDSHAKE_S", 0.2)

    async def slow(*_: object, **__: object) -> object:
        raise TimeoutError

    monkeypatch.setattr(tcp, "connect_to_supervisor", slow)
    with pytest.raises(ChannelError, match=r"^n1: TimeoutError; 10\.0\.0\.1: TimeoutError$"):
        asyncio.run(tcp.connect_to_any_address(["n1", "10.0.0.1"], 1, tcp.new_secret()))


def test_own_addresses_are_those_others_may_reach(tmp_path: Path) -> None:
    """No loopback and no link-local one; those of IPv6 by the kernel's table."""
    table = tmp_path / "if_inet6"
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "20010db8000000000000000000000007 02 40 00 80     eth0\n"
        "fe800000000000000000000000000007 02 40 20 80     eth0\n"
    )
    found = list_own_addresses(table)
    assert "2001:db8::7" in found
    assert not [one for one in found if one.startswith(("127.", "169.254.", "fe80", "::1"))]
