"""Promises about ranks that never meet: said of ranks that trained alone, and of no others."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import until

from hpckit.runtime.agent.meeting import have_ranks_connected

pytestmark = pytest.mark.training

ALONE = """
import os, time
if int(os.environ.get("SLURM_NTASKS", 1)) > 1:
    raise SystemExit("formed a group")
print("rank 0 of 1", flush=True)
time.sleep(12)
"""

SHORT_GROUP = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
time.sleep(12)
"""

OTHER_PORT = """
import os, socket, sys, time
at, rank = sys.argv[1], os.environ["RANK"]
if rank == "0":
    server = socket.create_server(("127.0.0.1", 0))
    open(at + ".new", "w").write(str(server.getsockname()[1]))
    os.rename(at + ".new", at)
    kept = server.accept()
else:
    while not os.path.exists(at):
        time.sleep(0.05)
    kept = socket.create_connection(("127.0.0.1", int(open(at).read())))
time.sleep(12)
"""


def warnings(workshop: Any, ranks: Any, code: str, *words: str) -> tuple[str, ...]:
    """Return what the record of a completed run of two ranks warns of."""
    line = f"python task.py {' '.join(words)}; true"  # a shell stands between agent and Python
    command = ["sh", "-c", line]
    ended = workshop.attempt(code, **ranks(2, entry_point=None, command=command))
    assert ended.code == 0, ended.output
    assert [exit_.code for exit_ in ended.exits()] == [0, 0], ended.output
    told: tuple[str, ...] = ended.record.warnings
    return told


def test_ranks_that_never_met_are_told_of(workshop: Any, ranks: Any) -> None:
    """Each took itself for the only one: the record says what that means, and what to do."""
    (told,) = warnings(workshop, ranks, ALONE)
    assert told.startswith("its 2 ranks did not connect to each other")
    assert "resources.tasks_per_node=1" in told


def test_ranks_that_met_for_a_moment_are_not_warned_of(workshop: Any, ranks: Any) -> None:
    """The group of torch is gone long before the ranks end."""
    assert warnings(workshop, ranks, SHORT_GROUP) == ()


def test_ranks_that_ended_at_once_are_not_warned_of(workshop: Any, ranks: Any) -> None:
    """They have trained nothing: `hostname` on two ranks is no slip."""
    assert warnings(workshop, ranks, "") == ()


@thorough
def test_ranks_that_met_by_a_port_of_their_own_are_not_warned_of(
    workshop: Any, ranks: Any, tmp_path: Path
) -> None:
    """Nothing of theirs ever uses MASTER_PORT."""
    assert warnings(workshop, ranks, OTHER_PORT, str(tmp_path / "port")) == ()


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return what starts a rank, and waits until it says that it is ready."""
    started = []

    def begin(rank: int, program: str, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program + "\nprint('ready', flush=True)\ninput()", *words],
            env={**os.environ, "HPCKIT_ATTEMPT_DIR": str(tmp_path), "HPCKIT_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.communicate("\n")


SERVES = """
import socket, sys, threading
server, kept = socket.create_server(("127.0.0.1", int(sys.argv[1]))), []
threading.Thread(target=lambda: kept.append(server.accept()), daemon=True).start()
"""
CONNECTS = """
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
"""
BELOW = """
import subprocess, sys
words = [sys.executable, "-c", "import socket, sys\\n" + sys.argv[2] + "\\ninput()", sys.argv[1]]
child = subprocess.Popen(words, env={}, stdin=subprocess.PIPE)
"""
MAPS = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    kept = mmap.mmap(file.fileno(), 0)
"""
READS = """
import mmap
with open(sys.argv[2], "rb") as file:
    read = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
"""


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Return three ports that nothing uses; a host has sockets of others, as that of an agent.

    They are held as the agent holds one: the kernel gives them to nobody else, and a server binds.
    """
    with contextlib.ExitStack() as held:
        held.enter_context(socket.create_server(("127.0.0.1", 0)))
        numbers: list[int] = []
        while len(numbers) < 3:
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            number = int(holder.getsockname()[1])
            if not have_ranks_connected({}, Path(), number):  # such as a connection that others have closed
                numbers.append(number)
        yield numbers


def sign(tmp_path: Path, port: int, *processes: subprocess.Popen[str]) -> bool:
    """Return whether these ranks, in order, are seen to have met."""
    pids = {process.pid: rank for rank, process in enumerate(processes)}
    return have_ranks_connected(pids, tmp_path, port)


def test_what_a_rank_does_within_itself_is_no_sign(start: Start, ports: list[int], tmp_path: Path) -> None:
    """A service of its own that it is connected to, and data that all ranks map to read them."""
    data = tmp_path / "data"
    data.write_bytes(bytes(4096))
    program = SERVES + CONNECTS + "while not kept: pass\n" + READS
    both = [start(rank, program, str(ports[rank]), str(data)) for rank in (0, 1)]
    assert not sign(tmp_path, ports[2], *both)


def test_connection_of_two_ranks_is_a_sign(start: Start, ports: list[int], tmp_path: Path) -> None:
    """Also if a child holds one end that has none of the rank's variables."""
    first = start(0, SERVES, str(ports[0]))
    assert not sign(tmp_path, ports[2], first)
    second = start(1, BELOW, str(ports[0]), CONNECTS)
    until(lambda: sign(tmp_path, ports[2], first, second))


def test_connection_of_agents_on_one_host_is_a_sign(start: Start, ports: list[int], tmp_path: Path) -> None:
    """One host may stand for several nodes; only the agent that has rank 0 sees its listener."""
    first = start(0, SERVES, str(ports[0]))
    start(1, "import socket, sys\n" + CONNECTS, str(ports[0]))
    until(lambda: sign(tmp_path, ports[2], first))


def test_memory_of_two_ranks_is_a_sign(start: Start, ports: list[int], tmp_path: Path) -> None:
    """Memory that both can write to, as MPI on one node has it."""
    shared = tmp_path / "memory"
    shared.write_bytes(bytes(4096))
    first = start(0, MAPS, str(shared))
    assert not sign(tmp_path, ports[2], first)
    assert sign(tmp_path, ports[2], first, start(1, MAPS, str(shared)))


def test_connection_that_was_closed_is_a_sign(ports: list[int], tmp_path: Path) -> None:
    """The kernel lists its port for a minute."""
    assert not sign(tmp_path, ports[0])
    with socket.create_server(("127.0.0.1", ports[0])) as server:
        with socket.create_connection(server.getsockname()):
            accepted, _ = server.accept()
        accepted.close()
    assert sign(tmp_path, ports[0])
