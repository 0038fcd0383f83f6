"""Signals by which Slurm and users announce that a job has to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""Sent ahead of the end: `sbatch --signal`, submitit, a user's `scancel --signal`."""

RANK_NOTICES = (signal.SIGTERM, *WARNINGS)
"""What makes a rank save and leave. Without SIGINT, which is KeyboardInterrupt in a user's code."""

NOTICES = (*RANK_NOTICES, signal.SIGINT)
"""What hpckit's own processes (executors, supervisors, agents) handle."""


def install_stop_signal_handlers(hear: Callable[[signal.Signals], None]) -> None:
    """Handle the signals of this process from now on, as a supervisor or an executor does."""
    loop = asyncio.get_running_loop()
    for number in NOTICES:
        loop.add_signal_handler(number, hear, number)
    for number in (signal.SIGCONT, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: None)
