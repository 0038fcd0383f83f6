"""Starts the supervisors of runs that wait for a place: in a job that they share, or on a laptop.

A start is cheap: a fork of a process that has imported what a supervisor needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from hpckit.record.launches import Launch
from hpckit.runtime.assignment import Step
from hpckit.runtime.forked import Program, fork

_IMPORTS = ("hpckit.batch.supervise", "hpckit.runtime.agent.prefork")
"""What a supervisor and its agent consist of."""


async def start_supervisor(
    launch: Launch,
    job: int,
    run: int,
    *,
    program: Program,
    environ: Mapping[str, str],
    cpus: Sequence[int] = (),
) -> Step:
    """Start the supervisor of a run, bound to these CPUs; raises OSError.

    `program` is hpckit's command line, which a fork runs.
    """
    words = ("supervise", str(launch.folder), f"--job={job}", f"--run={run}")
    try:
        return fork(program, words, environ, cpus=cpus, imports=_IMPORTS)
    except OSError:
        # TMPDIR is too long a path for a socket, or lies where there can be none.
        process = await asyncio.create_subprocess_exec(
            *launch.command(*words), env=environ, stdin=asyncio.subprocess.DEVNULL
        )
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(process.pid, cpus)
    return process


def signal_supervisor(process: Step, number: signal.Signals) -> None:
    """Send it a signal; nothing if it has left."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
