"""Checks whether a run of a stage may begin, from the record of the runs it follows.

The check is repeated where a run begins, since nothing else may have done it: Slurm forgets jobs,
and users submit scripts by hand. It starts and cancels nothing.
"""

from __future__ import annotations

from datetime import timedelta

from hpckit.context import Context
from hpckit.model.run import RunRecord
from hpckit.model.stages import DependencyType, find_stage_dependency_of_run, list_prerequisite_runs
from hpckit.model.states import RunState
from hpckit.record.attempts import latest_attempt_number
from hpckit.record.launches import Launch, read_launch_history, read_run_records

REFUSED = 75
"""Exit code of a job whose run may not begin (EX_TEMPFAIL: a resume may change that)."""

_PATIENCE = timedelta(seconds=75)
"""A node may see an end this late: NFS caches a folder for 60 s (acdirmax)."""

_LOOK_S = 3.0


def list_uncompleted_prerequisites(launch: Launch, index: int) -> tuple[RunRecord, ...]:
    """Return the runs that this one needs and that have not completed."""
    kind = find_stage_dependency_of_run(launch.stages, index)
    if kind in {None, DependencyType.afterany}:
        return ()
    records = read_run_records(launch, list_prerequisite_runs(launch.stages, index))
    return tuple(record for record in records if record.state is not RunState.completed)


def wait_until_run_may_begin(launch: Launch, index: int, context: Context) -> bool:
    """Return whether a run may begin, and print why not; waits for a late record."""
    if not launch.stages:
        return True
    attempts = latest_attempt_number(launch.paths.run(index).attempts)
    if attempts > read_launch_history(launch).count_attempts_before_job(index):
        return True  # an attempt has begun since the run was last submitted: it may continue
    deadline = context.now() + _PATIENCE
    while lacking := list_uncompleted_prerequisites(launch, index):
        if context.now() >= deadline:
            first, more = lacking[0], len(lacking) - 1
            others = f" and {more} more" if more else ""
            context.note(
                f"error: run {launch.runs[index].id} follows {first.id}{others}, which has not "
                f"completed ({first.state})\n  resume it first: hpckit resume {launch.id}"
            )
            return False
        context.sleep(_LOOK_S)
    return True
