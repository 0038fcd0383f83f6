"""What the supervisor of a run finds in a job that it shares with others.

Responsible for its stand-ins of an allocation of its own; it must not start or end anything. The
shared job asks Slurm for all of its runs, and starts them again itself.
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
"""The place of an agent that no launcher counts."""


def allocation_in_shared_job(spec: SharedJobSpec, context: Context) -> Allocation | None:
    """Return what the supervisor of such a run may ask for; None where nobody tells."""
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
        requeue=lambda _wish, _owns_run: RequeueResult(
            outcome=RequeueOutcome.requeued, message="it waits for a free slot of its job"
        ),
        draining=lambda: None,
    )


def environment_in_shared_job(spec: SharedJobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the agent: without what Slurm says of the job as a whole."""
    left = {name: value for name, value in environ.items() if name != VARIABLE}
    cpus = {"SLURM_CPUS_PER_TASK": str(spec.each.cpus_per_task)}
    return {**step_environment(left), **cpus, **ALONE}
