"""Whether the ranks of a command on one node stand still: they write nothing, and compute nothing.

Such a program says nothing of its steps, so only its output and its CPU time show that it goes on. All nodes
have to be silent before a round counts as hung: the supervisor puts that together.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from hpckit.model import messages
from hpckit.model.failure import StalledRank
from hpckit.record.process import PARENT, SESSION, read_proc_stat_fields
from hpckit.runtime.agent.hang_detector import StepWatch
from hpckit.runtime.agent.rank_starter import RankChild, RankOutlook
from hpckit.runtime.channel.pace import BEAT_S
from hpckit.runtime.threads import run_in_thread
from hpckit.values import dataclass, field

_SHARE = 0.01
"""Part of one CPU that a rank may use and still counts as idle: watchdogs and trackers poll."""
_LOOKS, _MOST_S = 20, 30.0
"""So often the limit is divided by looks, which are at most so far apart."""
_OVERSLEPT = 4
"""A look that comes so many times too late: this node was suspended, and its ranks with it."""
_TIMES = slice(11, 15)
"""Places of user and system time in `read_proc_stat_fields`, own and of children that were waited for."""


@dataclass(slots=True, kw_only=True)
class Silence:
    """Since when ranks have neither written nor computed; times are seconds of one monotonic clock. Pure."""

    ranks: int
    pause_s: float
    since: float = 0.0
    _looked_at: float = field(default=0.0, init=False)
    _written: Any = field(default=None, init=False)
    _spent: Mapping[int, float] = field(default_factory=dict, init=False)
    _used: float = field(default=0.0, init=False)

    def measure(self, at: float, written: Any, spent: Mapping[int, float]) -> float:
        """Return how long there has been silence; `spent` is CPU time by process, `written` any value."""
        self._used += sum(max(0.0, used - self._spent.get(pid, 0.0)) for pid, used in spent.items())
        late = at - self._looked_at > _OVERSLEPT * self.pause_s
        busy = self._used > _SHARE * self.ranks * (at - self.since)
        if late or busy or written != self._written:
            self.since, self._used = at, 0.0
        self._looked_at, self._written, self._spent = at, written, spent
        return at - self.since


async def watch_command_silence(
    outlook: RankOutlook,
    order: messages.StartRound,
    processes: Mapping[int, RankChild],
    steps: StepWatch,
    tell: Callable[[messages.Message], Awaitable[None]],
) -> None:
    """Tell the supervisor when this node's ranks fall silent, and when they no longer are.

    Ranks that have told of steps are judged by these alone.
    """
    limit_min, told = outlook.settings.recovery.command_silent_min, False
    if limit_min is None or outlook.settings.command is None:
        return
    limit_s, ranks = 60 * limit_min, order.local_world_size
    pause_s = min(max(limit_s / _LOOKS, BEAT_S), _MOST_S)
    silence = Silence(ranks=ranks, pause_s=pause_s)
    # Ranks that have ended are silent, too: those of other nodes may wait for them.
    while not told or any(process.returncode is None for process in processes.values()):
        await asyncio.sleep(pause_s)
        spent = await run_in_thread(lambda: read_cpu_seconds([one.pid for one in processes.values()]))
        written = await run_in_thread(lambda: _read_what_was_written(outlook, order))
        silent_s = silence.measure(time.monotonic(), written, spent)
        silent = silent_s > limit_s and not steps.watches_steps
        if silent is not told:
            stall = StalledRank(
                rank=order.first_rank,
                step=None,
                silent_s=silent_s if silent else 0.0,
                limit_s=limit_s,
                idle=ranks,
            )
            await tell(messages.Hung(round=order.round, stall=stall))
        told = silent


def _read_what_was_written(outlook: RankOutlook, order: messages.StartRound) -> list[tuple[int, int]]:
    """Return sizes and times of what ranks here write: their logs, and rank 0's metrics."""
    paths, first = outlook.attempt.round(order.round), order.first_rank
    files = [paths.rank_log(rank) for rank in range(first, first + order.local_world_size)]
    return [*map(_read_size_and_time, files), _read_size_and_time(outlook.attempt.metrics)]


def _read_size_and_time(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def read_cpu_seconds(ranks: list[int]) -> dict[int, float]:
    """Return the CPU time of these processes and of all that they have started, by process.

    Also of those whose parent has ended: the kernel made them children of this process, the agent.
    """
    own, session, tick = str(os.getpid()), str(os.getsid(0)), os.sysconf("SC_CLK_TCK")
    children: dict[str, list[str]] = {}
    spent: dict[str, float] = {}
    roots = [*map(str, ranks)]
    for pid in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208  # thrice as fast
        if found := read_proc_stat_fields(int(pid)):
            spent[pid] = sum(map(int, found[_TIMES])) / tick
            children.setdefault(found[PARENT], []).append(pid)
            if found[PARENT] == own and found[SESSION] != session:
                roots.append(pid)
    below: dict[int, float] = {}
    while roots:
        pid = roots.pop()
        if pid in spent and int(pid) not in below:
            below[int(pid)] = spent[pid]
            roots += children.get(pid, [])
    return below
