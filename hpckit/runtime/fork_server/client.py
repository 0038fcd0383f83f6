"""An agent's side of a fork server: asks it for ranks, and hears how they end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpckit.model.plain import from_plain
from hpckit.runtime.environ import FORK_SERVER
from hpckit.runtime.fork_server.protocol import (
    ForkAnswer,
    ForkOrder,
    read_peer_credentials,
    read_process_environment,
    send_fork_order,
    write_environment_to_memory_file,
)
from hpckit.values import dataclass, field

_PATIENCE_S = 120.0
"""For a fork: the fork server may still import, from a file system that many read from."""
_MOST_BYTES = 65536
_KILLED = -9


@dataclass(slots=True, eq=False)
class ForkedRank:
    """A forked rank with the interface of asyncio's processes."""

    pid: int
    _end: asyncio.Future[int]

    @property
    def returncode(self) -> int | None:
        """The exit code in the form of `subprocess`; None while it runs."""
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        """Return the exit code, once there is one."""
        return await asyncio.shield(self._end)


@dataclass(slots=True, kw_only=True)
class ForkServerClient:
    """The connection to a fork server. When it ends, so do all ranks that came over it."""

    connection: socket.socket
    _pids: dict[int, asyncio.Future[int]] = field(default_factory=dict, init=False)
    _ends: dict[int, asyncio.Future[int]] = field(default_factory=dict, init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False)
    _listening: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self._listening = asyncio.ensure_future(self._read_answers())

    async def start_rank(
        self, variables: Mapping[str, str], log: int, lines: Mapping[str, int], cpus: Sequence[int]
    ) -> ForkedRank | None:
        """Start a rank with these variables, its log and its lines; None if it cannot be forked."""
        if self._listening.done():
            return None
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        pid = self._pids[number] = loop.create_future()
        end = self._ends[number] = loop.create_future()
        order = ForkOrder(
            number=number,
            python=sys.executable,
            folder=os.getcwd(),  # noqa: PTH109  # as a child would inherit it
            cpus=tuple(sorted(cpus or os.sched_getaffinity(0))),
            lines=tuple(lines),
        )
        file = write_environment_to_memory_file(variables)
        try:
            send_fork_order(self.connection, order, (file, log, *lines.values()))
            async with asyncio.timeout(_PATIENCE_S):
                return ForkedRank(await pid, end)
        except (OSError, TimeoutError):
            self.close()  # it would else fork a rank that another process already is
            return None
        finally:
            os.close(file)

    async def end_leftover_processes(self, grace_s: float) -> int:
        """Have ended what ranks have left behind; return how many processes stay."""
        if self._listening.done():
            return 0  # it has ended all of it, or was killed
        number = next(self._numbers)
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ends[number] = end
        with contextlib.suppress(OSError):
            send_fork_order(self.connection, ForkOrder(number=number, grace_s=grace_s), ())
            return max(await end, 0)
        return 0

    async def _read_answers(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, ValueError, TypeError):
            while packet := await loop.sock_recv(self.connection, _MOST_BYTES):
                self._resolve_answered_futures(from_plain(ForkAnswer, json.loads(packet)))
        self.connection.close()
        self._report_ranks_killed()

    def _resolve_answered_futures(self, answer: ForkAnswer) -> None:
        if answer.pid is not None:
            _set_result_once(self._pids.pop(answer.number, None), answer.pid)
        if answer.code is not None:
            _set_result_once(self._ends.pop(answer.number, None), answer.code)

    def _report_ranks_killed(self) -> None:
        """Its ranks have ended with the fork server, as the kernel sees to it."""
        for pid in self._pids.values():
            if not pid.done():
                pid.set_exception(ConnectionResetError("the fork server has ended"))
        for end in self._ends.values():
            _set_result_once(end, _KILLED)
        self._pids.clear()
        self._ends.clear()

    def close(self) -> None:
        """End the connection and all ranks that came over it."""
        self._listening.cancel()
        self.connection.close()
        self._report_ranks_killed()


def _set_result_once(future: asyncio.Future[int] | None, value: int) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def connect_to_fork_server(environ: Mapping[str, str]) -> socket.socket | None:
    """Connect to the fork server that these variables name; None if there is none for this job.

    One of another job or user is not asked: its ranks would have that job's limits.
    """
    path = environ.get(FORK_SERVER)
    if not path:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
        if _is_same_user_and_job(connection, environ):
            connection.setblocking(False)  # noqa: FBT003  # the socket's own signature
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _is_same_user_and_job(connection: socket.socket, environ: Mapping[str, str]) -> bool:
    """Return whether the process that listens is of this user and job, and sees what this one does.

    Its ranks would else have the limits of another job, or the files of another namespace.
    """
    pid, user = read_peer_credentials(connection)
    job = read_process_environment(pid).get("SLURM_JOB_ID")
    same_job = user == os.geteuid() and job == environ.get("SLURM_JOB_ID")
    return same_job and _read_cgroup_and_namespaces(str(pid)) == _read_cgroup_and_namespaces("self")


def _read_cgroup_and_namespaces(process: str) -> tuple[str, ...]:
    at = Path("/proc", process)
    namespaces = sorted((at / "ns").iterdir())
    return ((at / "cgroup").read_text(), *(str(namespace.readlink()) for namespace in namespaces))
