"""Whether a run of a stage may begin: by what our own record says of the runs it follows.

Responsible for asking that once more where a run begins, as nobody else may have: Slurm forgets
jobs, and people submit scripts by hand. It must not begin or cancel anything.
"""

from __future__ import annotations

from datetime import timedelta

from hpckit.context import Context
from hpckit.model.run import RunRecord
from hpckit.model.stages import DependencyType, followed, kind_of
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, latest_attempt, read_launch_history, read_runs

REFUSED = 75
"""What a job ends with whose run may not begin (EX_TEMPFAIL: a resume may change that)."""

_PATIENCE = timedelta(seconds=75)
"""A node may see an end so late: NFS keeps what it knows of a folder for 60 s (acdirmax)."""

_LOOK_S = 3.0


def missing_runs(launch: Launch, index: int) -> tuple[RunRecord, ...]:
    """Return the runs that have not completed, and that this one needs."""
    kind = kind_of(launch.stages, index)
    if kind in {None, DependencyType.afterany}:
        return ()
    records = read_runs(launch, followed(launch.stages, index))
    return tuple(one for one in records if one.state is not RunState.completed)


def may_begin(launch: Launch, index: int, context: Context) -> bool:
    """Return whether a run may begin, and say why not; it waits for a record that comes late."""
    if not launch.stages or _has_begun(launch, index):
        return True
    deadline = context.now() + _PATIENCE
    while lacking := missing_runs(launch, index):
        if context.now() >= deadline:
            first, more = lacking[0], len(lacking) - 1
            others = f" and {more} more" if more else ""
            context.note(
                f"error: run {launch.runs[index].id} follows {first.id}{others}, which has not "
                f"completed ({first.state})\n  resume that one: hpckit resume {launch.id}"
            )
            return False
        context.sleep(_LOOK_S)
    return True


def _has_begun(launch: Launch, index: int) -> bool:
    """Whether an attempt has begun since the run was last submitted: then it may go on."""
    attempts = latest_attempt(launch.paths.run(index).attempts)
    return attempts > read_launch_history(launch).attempts_before(index)
