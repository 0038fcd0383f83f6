"""Signals by which Slurm and users announce that a job has to stop."""

from __future__ import annotations

import signal

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""Sent ahead of the end: `sbatch --signal`, submitit, a user's `scancel --signal`."""

RANK_NOTICES = (signal.SIGTERM, *WARNINGS)
"""What makes a rank save and leave. Without SIGINT, which is KeyboardInterrupt in a user's code."""

NOTICES = (*RANK_NOTICES, signal.SIGINT)
"""What hpckit's own processes (executors, supervisors, agents) handle."""
