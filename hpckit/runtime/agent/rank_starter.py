"""Starts the process of a rank with its log, its line to the agent and its board.

Forks it where the agent may use a fork server; else starts Python, below nsys if that is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from hpckit.model.cluster.gpus_asked import gpus_asked
from hpckit.model.counted import ranges
from hpckit.model.launch import LaunchConfig, NumaBinding
from hpckit.observe.gpus import read_gpu_cpus
from hpckit.planning.jobs.cpu_binding import CpuBinding, bind_ranks
from hpckit.record.store import PRIVATE_FILE
from hpckit.runtime.agent.nsys import RankStart
from hpckit.runtime.channel import rank_pipe
from hpckit.runtime.environ import TERMINAL, environment
from hpckit.runtime.fork_server.client import ForkedRank, ForkServerClient
from hpckit.runtime.fork_server.fresh import rank_words
from hpckit.runtime.threads import aside, aside_within

_PATIENCE_S = 5.0
"""For a driver; ranks start without a binding if it does not answer."""


async def rank_binding(
    settings: LaunchConfig, environ: Mapping[str, str], ranks: int
) -> CpuBinding:
    """Return the CPUs of each rank; free of any if the run has no GPUs or does not want it."""
    free = CpuBinding(cpus=(frozenset(),) * ranks)
    if settings.runtime.numa_binding is NumaBinding.off or not gpus_asked(settings.resources):
        return free
    found = await aside_within(_PATIENCE_S, lambda: read_gpu_cpus(environ), None)
    return free if found is None else bind_ranks(found, os.sched_getaffinity(0), ranks)


def bind_process(pid: int, cpus: frozenset[int]) -> None:
    """Let a process that has just started, and all that it will start, run on these CPUs only."""
    if cpus:
        with contextlib.suppress(OSError):  # it has ended, or its cgroup has lost these CPUs
            os.sched_setaffinity(pid, cpus)


def binding_words(binding: CpuBinding, first_rank: int, node: str) -> str:
    """Return the warning about ranks whose GPU has no, or too few, CPUs of the job next to it."""
    ranked = ranges(first_rank + place for place in binding.far or binding.scarce)
    if binding.far:
        problem = f"the job has no CPU on {node} next to the GPU of rank {ranked}"
        then = "its data takes the way through the other socket"
    elif binding.scarce:
        problem = f"the job has too few CPUs on {node} next to the GPUs of rank {ranked}"
        then = "all ranks there run on all of its CPUs"
    else:
        return ""
    return (
        f"{problem}: {then}; ask Slurm for CPUs next to GPUs "
        "(+resources.additional_parameters.gres_flags=enforce-binding), or for whole nodes "
        "(resources.exclusive=true)"
    )


RankChild = asyncio.subprocess.Process | ForkedRank


async def start_rank(
    start: RankStart,
    log: Path,
    variables: Mapping[str, str],
    lines: Mapping[str, int],
    cpus: frozenset[int],
    fork_server: ForkServerClient | None,
) -> tuple[RankChild, socket.socket]:
    """Start a rank that inherits these open files; `lines` are the variables that name them.

    Returns its process and this end of its line to the agent; raises OSError.
    """
    ours, theirs = socket.socketpair()
    terminal = environment().get(TERMINAL)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = await aside(lambda: os.open(log, flags, PRIVATE_FILE))
    if terminal is not None:
        # The process that shows the terminal also writes the log.
        os.close(file)
        file = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    inherited = {rank_pipe.VARIABLE: theirs.fileno(), **lines}
    own = {**variables, **start.variables}
    try:
        process: RankChild | None = None
        if fork_server is not None and not start.words and terminal is None:
            process = await fork_server.start(own, file, inherited, sorted(cpus))
        if process is None:  # without a fork server, or if it needs a process of its own
            named = {name: str(number) for name, number in inherited.items()}
            process = await asyncio.create_subprocess_exec(
                *start.words,
                *rank_words(sys.executable),
                stdin=asyncio.subprocess.DEVNULL if terminal is None else file,
                stdout=file,
                stderr=file,
                env={**variables, **named, **start.variables},
                pass_fds=tuple(inherited.values()),
                start_new_session=True,
            )
            bind_process(process.pid, cpus)
    finally:
        theirs.close()
        os.close(file)
    ours.setblocking(False)  # noqa: FBT003  # the socket's own signature
    return process, ours
