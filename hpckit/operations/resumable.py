"""Reads which runs of a launch may be submitted again: what the files add to the views.

Does not choose between them (planning.resume does) and changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.model.run import RunView
from hpckit.model.stages import followed
from hpckit.model.states import RunState
from hpckit.operations.frozen_script import changed_scripts, python_gone, require_python
from hpckit.planning.recovery.budget import spent
from hpckit.planning.recovery.resume import Choice, Known
from hpckit.planning.signature import frozen_signature
from hpckit.planning.stages import chained, digest
from hpckit.record.counted_events import counted_events
from hpckit.record.launches import Launch, load_frozen, load_settings
from hpckit.record.snapshot.changes import changes
from hpckit.record.snapshot.environment import capture_of
from hpckit.record.snapshot.git import Git
from hpckit.record.trials import read_search
from hpckit.views.launch_view import LaunchView, unconfirmed

_SHOWN = 5


def known_of(view: LaunchView, history: LaunchHistory) -> Known:
    """Return which runs were never submitted, and for which that is unknown."""
    launch = view.launch
    unanswered = unconfirmed(launch)
    doubtful = {run for job in unanswered for run in job.runs}
    indices = {job.index for job in unanswered}
    behind = {run for run, one in history.successors.items() if one.job_index in indices}
    waiting = {run.record.index for run in view.runs if not run.record.begun}
    of_slurm = launch.cluster.kind is ClusterKind.slurm
    given = set(history.slurm_jobs if of_slurm else history.executors)
    if of_slurm:
        given |= {run for job in history.waiting() for run in job.runs}
    return Known(unsubmitted=waiting - given, doubtful=(doubtful & waiting - given) | behind)


def spent_of(view: LaunchView, choice: Choice, history: LaunchHistory) -> Mapping[int, str]:
    """Return the runs that have used up their budgets, and how."""
    by_index = {run.record.index: run for run in view.runs}
    reasons = {run: _reason(view.launch, by_index[run], history) for run in choice.resumed}
    return {run: reason for run, reason in reasons.items() if reason is not None}


def _reason(launch: Launch, view: RunView, history: LaunchHistory) -> str | None:
    index = view.record.index
    if view.state in {RunState.pending, RunState.completed} or view.blocked:
        # This run was never submitted, or did not fail by itself.
        return None
    return spent(
        view,
        counted_events(launch, index, history=history),
        load_settings(launch, index)[0].recovery,
        idle=history.idle.get(index, 0),
    )


def check_unchanged(
    launch: Launch, runs: Iterable[int], earlier: Sequence[JobSpec], context: Context
) -> None:
    """Raise UsageError if these runs, or their earlier jobs, differ from what was frozen."""
    found = [
        *changes(launch.paths, Git(context.environ)),
        *(
            f"the configuration of run {run} was edited"
            for run in runs
            if _signature(launch, run) != launch.runs[run].signature
        ),
        *changed_scripts(launch, earlier, context),
    ]
    if not found:
        return
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise UsageError(
        f"what {launch.id} was frozen with has changed: {'; '.join(found[:_SHOWN])}{more}",
        hint="undo that, or start a new launch; --changed-code resumes with what is there now",
    )


def _signature(launch: Launch, run: int) -> str:
    """Return the signature of a run from its present configuration and the runs it follows."""
    search = read_search(launch.paths) if launch.searched else None
    own = frozen_signature(load_frozen(launch, run), search, run)
    return chained(
        own, digest(launch.runs[index].signature for index in followed(launch.stages, run))
    )


def require_installation(launch: Launch, context: Context) -> None:
    """Raise UsageError if the Python of the launch's runs or its hpckit is gone; starts it."""
    require_python(launch)
    own = launch.cluster.python is not None or launch.python == sys.executable
    if not own and capture_of(launch.python, context.environ) is None:
        raise python_gone(
            f"hpckit is no longer installed for {launch.python}, with which {launch.id} ran"
        )
