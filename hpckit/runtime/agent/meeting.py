"""Whether a node's ranks ever met other ranks: ranks that met no others train alone.

They met where anything used MASTER_PORT, where a rank took a connection of another one or of
another host, and where two map the same memory. In doubt they met: no warning is better than a
false one. What met over Unix sockets alone is not seen: the kernel lists no ends of these.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from hpckit.model.messages import StartRound
from hpckit.record.process import SESSION, SIZE, read_proc_stat_fields
from hpckit.runtime.agent.rank_starter import RankChild, RankOutlook
from hpckit.runtime.fork_server.protocol import read_process_environment
from hpckit.runtime.threads import run_in_thread
from hpckit.values import dataclass, field

_LEAST_S = 10.0
"""Programs that end sooner have trained nothing, and may have had no reason to meet."""
_FIRST_S, _MOST_S, _SHARE = 1.0, 30.0, 0.2
"""Pauses between looks are this share of the time so far: short at first, when groups form, and
never as long as the 60 s for which the kernel lists a connection that was closed."""
_CONNECTED, _LISTENS = "01", "0A"
_IPV4_IN_IPV6 = "0000000000000000FFFF0000"


@dataclass(slots=True)
class Meeting:
    """Looks for signs that ranks met: those of one node and round, `processes` by rank."""

    outlook: RankOutlook
    order: StartRound
    processes: Mapping[int, RankChild]
    _met: bool = field(init=False)
    _before: Container[tuple[str, str]] = ()
    _began_at: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        # hpckit itself has the ranks of a function meet.
        self._met = self.order.world_size == 1 or self.outlook.settings.command is None
        with contextlib.suppress(OSError, LookupError):  # the port may have had another user
            self._before = () if self._met else set(_read_tcp_sockets())

    async def watch_until_ranks_connect(self) -> None:
        """Look now and then, until ranks have met or ended."""
        while not self._met and any(process.returncode is None for process in self.processes.values()):
            ran_s = time.monotonic() - self._began_at
            await asyncio.sleep(min(max(_FIRST_S, ran_s * _SHARE), _MOST_S))
            await run_in_thread(self._check_for_rendezvous)

    def seconds_without_rendezvous(self) -> float:
        """Look, and return for how long these ranks have been alone, in seconds; 0 in doubt."""
        if (ran_s := time.monotonic() - self._began_at) < _LEAST_S:
            return 0.0
        self._check_for_rendezvous()
        return 0.0 if self._met else ran_s

    def _check_for_rendezvous(self) -> None:
        known = [*self.processes.items()]  # while others are started
        pids = {one.pid: rank for rank, one in known if one.returncode is None}
        try:
            folder, port = self.outlook.attempt.folder, self.order.master_port
            self._met = self._met or have_ranks_connected(pids, folder, port, self._before)
        except (OSError, ValueError, LookupError):  # /proc is not as we know it
            self._met = True


def have_ranks_connected(
    ranks: Mapping[int, int], attempt: Path, port: int, before: Container[tuple[str, str]] = ()
) -> bool:
    """Return whether there is a sign of ranks that met; `ranks` are those of this node, by pid.

    Connections `before` the ranks began are none. An agent has one: without any, none is listed.
    """
    sockets, number = _read_tcp_sockets(), f"{port:04X}"
    if not sockets or any(number in {a[-4:], b[-4:]} and (a, b) not in before for a, b in sockets):
        return True
    network = Path("/proc/self/ns/net").stat().st_ino
    owners: dict[str, int] = {}
    areas: dict[tuple[str, str], int] = {}
    for pid, rank in _find_rank_processes(ranks, attempt):
        try:
            if Path(f"/proc/{pid}/ns/net").stat().st_ino == network:
                owners |= dict.fromkeys(_list_open_files(pid), rank)
            elif rank in ranks.values():
                return True  # its connections are listed elsewhere
            if any(areas.setdefault(area, rank) != rank for area in _list_shared_memory(pid)):
                return True
        except OSError:
            if (fields := read_proc_stat_fields(pid)) and fields[SIZE] != "0":  # what ends has no memory left
                return True
    owned = {ends: owners[file] for ends, (_, file) in sockets.items() if file in owners}
    ports = {local[-4:] for local, remote in owned if sockets[local, remote][0] == _LISTENS}
    return any(
        sockets[local, remote][0] == _CONNECTED and local[-4:] in ports and owned.get((remote, local)) != rank
        for (local, remote), rank in owned.items()
    )


def _read_tcp_sockets() -> dict[tuple[str, str], tuple[str, str]]:
    """Return state and file of this network's TCP sockets by both ends, which end with the port."""
    found = {}
    for table in Path("/proc/net").glob("tcp*"):  # also without IPv6
        for line in table.read_text().splitlines()[1:]:
            words = line.replace(_IPV4_IN_IPV6, "").split()
            found[words[1], words[2]] = words[3], f"socket:[{words[9]}]"
    return found


def _find_rank_processes(ranks: Mapping[int, int], attempt: Path) -> Iterator[tuple[int, int]]:
    for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:  # noqa: PTH208  # fast
        rank = ranks.get(int(fields[SESSION])) if (fields := read_proc_stat_fields(pid)) else None
        if rank is None:  # has left its rank's session, or is another agent's
            found = read_process_environment(pid)
            if found.get("HPCKIT_ATTEMPT_DIR") != str(attempt) or "HPCKIT_RANK" not in found:
                continue
            rank = int(found["HPCKIT_RANK"])
        yield pid, rank


def _list_open_files(pid: int) -> Iterator[str]:
    for file in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(file.path)  # noqa: PTH115  # thousands


def _list_shared_memory(pid: int) -> Iterator[tuple[str, str]]:
    """Yield device and inode of the memory that a process may write to together with others."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        _, access, _, device, inode, *name = line.split(maxsplit=5)
        path = "".join(name).replace("/dev/shm/", "/")  # noqa: S108  # other devices are shared by all
        if access == "rw-s" and path.startswith("/") and not path.startswith("/dev/"):
            yield device, inode
