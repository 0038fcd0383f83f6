"""The allocation and environment of a run's supervisor in a shared job.

They replace those of a separate job: the shared job queries Slurm for all of its runs, and restarts
them itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hpckit.batch.shared_job.notes import VARIABLE, SharedJobNotes
from hpckit.context import Context
from hpckit.model.cluster.allocation import AttemptLimits, RequeueResult
from hpckit.model.plan import SharedJobSpec
from hpckit.model.states import RequeueOutcome
from hpckit.runtime.assignment import Allocation
from hpckit.slurm.step import step_environment

ALONE = {"HPCKIT_RANK": "0", "HPCKIT_WORLD_SIZE": "1"}
"""Rank and world size for an agent that is started without a launcher."""


def allocation_in_shared_job(spec: SharedJobSpec, context: Context) -> Allocation | None:
    """Return what the run's supervisor may ask for; None without the shared job's notes."""
    folder = context.environ.get(VARIABLE)
    if folder is None:
        return None
    notes, each = SharedJobNotes(Path(folder)), spec.each.timeout
    own_end = None if each is None else time.monotonic() + each.total_seconds()

    def limits() -> AttemptLimits:
        told = notes.limits()
        ends = [end for end in (told.end_s, own_end) if end is not None]
        return replace(told, end_s=min(ends, default=None))

    return Allocation(
        limits=limits,
        why=notes.ending,
        requeue=lambda wish, _owns_run: RequeueResult(
            outcome=RequeueOutcome.requeued,
            message="it waits for a free slot of its job",
            kept=wish.excluded,  # the job has the nodes that it has
        ),
        draining=lambda _: None,
    )


def environment_in_shared_job(spec: SharedJobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the agent, without Slurm's variables for the job as a whole."""
    left = {name: value for name, value in environ.items() if name != VARIABLE}
    cpus = {"SLURM_CPUS_PER_TASK": str(spec.each.cpus_per_task)}
    return {**step_environment(left), **cpus, **ALONE}
