"""Starts the supervisors of runs that wait for a place: in a job that they share, or on a laptop.

Responsible for starting one cheaply; it must not choose which, nor await any.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from hpckit.cli.local import command
from hpckit.cli.main import main
from hpckit.record.launches import Launch
from hpckit.runtime.assignment import Step
from hpckit.runtime.forked import fork

_IMPORTS = ("hpckit.cli.supervise", "hpckit.runtime.agent.prefork")
"""What a supervisor and its agent consist of."""


async def start_supervisor(
    launch: Launch, job: int, run: int, environ: Mapping[str, str], cpus: Sequence[int] = ()
) -> Step:
    """Start the supervisor of a run, bound to these CPUs; raises OSError."""
    words = ("supervise", str(launch.folder), f"--job={job}", f"--run={run}")
    try:
        return fork(main, words, environ, cpus=cpus, imports=_IMPORTS)
    except OSError:
        # TMPDIR is too long a path for a socket, or lies where there can be none.
        process = await asyncio.create_subprocess_exec(
            *command(launch, *words), env=environ, stdin=asyncio.subprocess.DEVNULL
        )
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(process.pid, cpus)
    return process


def signal_supervisor(process: Step, number: signal.Signals) -> None:
    """Send it a signal; nothing where it has left."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
