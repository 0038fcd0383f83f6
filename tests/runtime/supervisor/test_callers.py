"""Strangers at the supervisor's port: they neither keep agents out nor lose events."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from waiting import LIMIT_S, run_to_end, until

from hpckit.model import messages
from hpckit.model.failure import RankStack
from hpckit.record.layout import LaunchPaths
from hpckit.record.store import read_events
from hpckit.runtime import descriptors
from hpckit.runtime.channel import tcp
from hpckit.runtime.channel.listen import open_listening_socket
from hpckit.runtime.supervisor import callers
from hpckit.runtime.supervisor.callers import AgentListener

FLOOD = """
import os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
port, number, held = int(sys.argv[1]), int(sys.argv[2]), []
while len(held) < number:
    caller = socket.socket()
    caller.settimeout(1)
    try:
        caller.connect(("127.0.0.1", port))
        held.append(caller)
    except OSError:
        break
print(len(held), flush=True)
time.sleep(60)
"""


@asynccontextmanager
async def answering(attend: callers.Attend, secret: str) -> AsyncIterator[int]:
    """Accept callers on loopback; the value is the port."""
    bound = open_listening_socket("127.0.0.1")
    port = bound.getsockname()[1]
    task = asyncio.create_task(AgentListener(bound=bound, secret=secret, attend=attend).accept_callers())
    yield port
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def called_among(strangers: int) -> object:
    """Return what an agent says that calls behind so many who hold their tongues."""
    secret = tcp.new_secret()
    heard: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def attend(channel: tcp.Channel) -> None:
        heard.set_result(await channel.receive())
        await channel.close()

    async with answering(attend, secret) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(strangers)]
        channel = await tcp.connect_to_supervisor("127.0.0.1", port, secret)
        channel.send_without_waiting(messages.Beat())
        said = await asyncio.wait_for(heard, 30)
        await channel.close()
        for one in silent:
            one.close()
        return said


def test_callers_that_say_nothing_do_not_keep_an_agent_out() -> None:
    """The oldest strangers have to go where others wait; who knows the secret comes in."""
    assert asyncio.run(called_among(3 * callers.PENDING)) == messages.Beat()


async def call_while_busy(number: int) -> None:
    """Call so often while the supervisor does something else; raises TimeoutError."""

    async def attend(channel: tcp.Channel) -> None:
        await channel.close()

    async with answering(attend, tcp.new_secret()) as port:
        await asyncio.sleep(0.1)
        address = ("127.0.0.1", port)
        waiting = [socket.create_connection(address, timeout=0.5) for _ in range(number)]
        for one in waiting:
            one.close()


@asynccontextmanager
async def both_sides() -> AsyncIterator[tuple[tcp.Channel, tcp.Channel]]:
    """Connect an agent; the value is its channel, and the supervisor's."""
    secret = tcp.new_secret()
    came: asyncio.Future[tcp.Channel] = asyncio.get_running_loop().create_future()

    async def attend(channel: tcp.Channel) -> None:
        came.set_result(channel)

    async with answering(attend, secret) as port:
        yield await tcp.connect_to_supervisor("127.0.0.1", port, secret), await came


async def said_unread() -> tuple[bool, bool]:
    """Return whether a channel knows of something unread before and after the other side spoke."""
    async with both_sides() as (agent, channel):
        channel.writer.transport.pause_reading()  # type: ignore[attr-defined]  # busy elsewhere
        before = channel.has_unread_data()
        await agent.send(messages.Beat())
        await asyncio.sleep(0.2)
        found = before, channel.has_unread_data()
        await agent.close()
        channel.abort()
        return found


async def taken() -> tuple[bool, bool]:
    """Return whether all was taken of one message, and of more than a kernel keeps, unread."""
    async with both_sides() as (agent, channel):
        agent.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is not scheduled
        channel.send_without_waiting(messages.Beat())
        await asyncio.sleep(0.2)
        little = channel.is_all_acknowledged()
        for _ in range(100):
            channel.send_without_waiting(messages.Warn(message="x" * 200_000))
        much = channel.is_all_acknowledged()
        channel.abort()
        agent.abort()
        return little, much


def test_channel_knows_whether_the_other_sides_kernel_took_what_it_was_told() -> None:
    """A machine that takes what its agent does not read is there: it is no lost node."""
    assert asyncio.run(taken()) == (True, False)


def test_channel_knows_that_the_other_side_spoke_while_nobody_listened() -> None:
    """An agent whose words wait in the kernel is not silent: its node is not lost for that."""
    assert asyncio.run(said_unread()) == (False, True)


def test_callers_wait_in_a_queue_for_a_thousand() -> None:
    """The kernel keeps as many callers waiting as it allows, not the hundred of asyncio."""
    most = int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="utf-8"))
    asyncio.run(call_while_busy(min(most, 1024)))


def limited(files: str, *words: str) -> list[str]:
    """Return a command that may have so few files open."""
    return ["/bin/sh", "-c", f'ulimit {files}; exec "$@"', "sh", sys.executable, *words]


@pytest.fixture
def sleeping(tmp_path: Path) -> Path:
    """Return a launch of one rank that sleeps."""
    words = ["render", "--json", "cluster=local", "experiment=command", "command=[sleep,300]"]
    done = run_to_end(
        [sys.executable, "-m", "hpckit", *words, "code.snapshot=false", "recovery=never"],
        env={**os.environ, "HPCKIT_OUTPUTS": str(tmp_path / "outputs")},
        cwd=tmp_path,
        check=True,
    )
    return Path(json.loads(done.stdout)["dir"])


@pytest.mark.slow
def test_flood_of_strangers_loses_no_event_of_a_supervisor_with_few_descriptors(sleeping: Path) -> None:
    """A rank that dies meanwhile is recorded, and so are the round and the attempt."""
    attempt = LaunchPaths(sleeping).run(0).attempt(1)
    words = ("-m", "hpckit", "supervise", str(sleeping), "--job", "0", "--run", "0")
    supervisor = subprocess.Popen(
        limited("-n 256", *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    flood = None
    try:
        rank = until(lambda: _sleeper(supervisor.pid))
        port = json.loads(attempt.address.read_text())["port"]
        flood = subprocess.Popen(
            [sys.executable, "-c", FLOOD, str(port), "400"], stdout=subprocess.PIPE, text=True
        )
        assert flood.stdout is not None
        assert int(flood.stdout.readline()) == 400
        os.kill(rank, signal.SIGKILL)
        output, _ = supervisor.communicate(timeout=LIMIT_S)
    finally:
        supervisor.kill()
        if flood is not None:
            flood.kill()
            flood.communicate()
    told = [event.kind for event in read_events(attempt.events)]
    assert {"rank_exited", "round_ended", "attempt_ended"} <= set(told), (told, output)
    assert "cannot record" not in output


def _sleeper(root: int) -> int | None:
    """Return the process of the rank below a supervisor."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[:2] == [b"sleep", b"300"] and _below(int(folder.name), root):
                return int(folder.name)
    return None


def _below(pid: int, root: int) -> bool:
    while pid > 1:
        if pid == root:
            return True
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        pid = int(text.rpartition(")")[2].split()[1])
    return False


def test_descriptors_are_raised_to_what_the_system_allows_and_told_where_too_few() -> None:
    """A process of a login shell's 1024 has the hard limit; too many open files get a hint."""
    program = (
        "import resource\n"
        "from hpckit.runtime.descriptors import add_open_files_hint, raise_open_file_limit\n"
        "raise_open_file_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "print(add_open_files_hint('socket: Too many open files'))"
    )
    done = run_to_end(limited("-S -n 64; ulimit -H -n 512", "-c", program), check=True)
    limits, hint = done.stdout.splitlines()
    assert limits == "(512, 512)"
    assert "may have 512 files open" in hint
    assert descriptors.add_open_files_hint("something else") == "something else"


def test_stacks_of_a_large_node_fit_through_the_channel() -> None:
    """What 128 ranks were doing is said a rank a message, each below a line's limit."""
    text = "\N{GRINNING FACE}" * 20_000
    stack = RankStack(rank=0, node="n", state="S (sleeping)", step=1, text=text)
    assert len(messages.encode_message(messages.StackSaved(round=0, stack=stack))) < tcp.LINE_LIMIT / 2
