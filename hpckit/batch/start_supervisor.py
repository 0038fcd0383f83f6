"""Starts the supervisors of runs that wait for a slot, in a shared job or on this machine.

A start is cheap: it forks a process that has already imported what a supervisor needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from hpckit.record.launches import Launch
from hpckit.runtime.assignment import Step
from hpckit.runtime.forked import Program, fork_program

_IMPORTS = ("hpckit.batch.supervise", "hpckit.runtime.agent.prefork")
"""The modules of a supervisor and its agent."""


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

    `program` is hpckit's command line, which the fork runs.
    """
    words = ("supervise", str(launch.folder), f"--job={job}", f"--run={run}")
    try:
        return fork_program(program, words, environ, cpus=cpus, imports=_IMPORTS)
    except OSError:
        # TMPDIR is too long a path for a socket, or is where none can be created.
        process = await asyncio.create_subprocess_exec(
            *launch.build_hpckit_command(*words), env=environ, stdin=asyncio.subprocess.DEVNULL
        )
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(process.pid, cpus)
    return process


def signal_supervisor(process: Step, number: signal.Signals) -> None:
    """Send a signal to a supervisor; do nothing if it has exited."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
