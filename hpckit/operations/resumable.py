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
from hpckit.model.stages import list_prerequisite_runs
from hpckit.model.states import RunState
from hpckit.operations.frozen_script import (
    describe_changed_scripts,
    missing_python_error,
    refuse_missing_python,
)
from hpckit.planning.recovery.budget import explain_no_automatic_restart
from hpckit.planning.recovery.resume import Choice, Known
from hpckit.planning.signature import compute_frozen_signature
from hpckit.planning.stages import chain_signature, combine_signatures
from hpckit.record.counted_events import read_events_for_restart_budget
from hpckit.record.launches import Launch, load_frozen_config, load_run_settings
from hpckit.record.snapshot.changes import describe_changes_in_frozen_code
from hpckit.record.snapshot.environment import capture_python_environment
from hpckit.record.snapshot.git import Git
from hpckit.record.trials import read_search_space
from hpckit.views.launch_view import LaunchView, list_unconfirmed_jobs

_SHOWN = 5


def find_unsubmitted_runs(view: LaunchView, history: LaunchHistory) -> Known:
    """Return which runs were never submitted, and for which that is unknown."""
    launch = view.launch
    unanswered = list_unconfirmed_jobs(launch)
    doubtful = {run for job in unanswered for run in job.runs}
    indices = {job.index for job in unanswered}
    behind = {run for run, one in history.successors.items() if one.job_index in indices}
    waiting = {run.record.index for run in view.runs if not run.record.has_attempt_begun}
    of_slurm = launch.cluster.kind is ClusterKind.slurm
    given = set(history.slurm_jobs if of_slurm else history.executors)
    if of_slurm:
        given |= {run for job in history.list_unsubmitted_jobs() for run in job.runs}
    return Known(unsubmitted=waiting - given, doubtful=(doubtful & waiting - given) | behind)


def find_runs_over_restart_budget(
    view: LaunchView, choice: Choice, history: LaunchHistory
) -> Mapping[int, str]:
    """Return the runs that have used up their budgets, and how."""
    by_index = {run.record.index: run for run in view.runs}
    reasons = {
        run: _explain_spent_restart_budget(view.launch, by_index[run], history) for run in choice.resumed
    }
    return {run: reason for run, reason in reasons.items() if reason is not None}


def _explain_spent_restart_budget(launch: Launch, view: RunView, history: LaunchHistory) -> str | None:
    index = view.record.index
    if view.state in {RunState.pending, RunState.completed} or view.blocked:
        # This run was never submitted, or did not fail by itself.
        return None
    return explain_no_automatic_restart(
        view,
        read_events_for_restart_budget(launch, index, history=history),
        load_run_settings(launch, index)[0].recovery,
        idle=history.idle.get(index, 0),
    )


def refuse_if_frozen_files_changed(
    launch: Launch, runs: Iterable[int], earlier: Sequence[JobSpec], context: Context
) -> None:
    """Raise UsageError if these runs, or their earlier jobs, differ from what was frozen."""
    found = [
        *describe_changes_in_frozen_code(launch.paths, Git(context.environ)),
        *(
            f"the configuration of run {run} was edited"
            for run in runs
            if _recompute_signature(launch, run) != launch.runs[run].signature
        ),
        *describe_changed_scripts(launch, earlier, context),
    ]
    if not found:
        return
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise UsageError(
        f"what {launch.id} was frozen with has changed: {'; '.join(found[:_SHOWN])}{more}",
        hint="undo that, or start a new launch; --changed-code resumes with what is there now",
    )


def _recompute_signature(launch: Launch, run: int) -> str:
    """Return the signature of a run from its present configuration and the runs it follows."""
    search = read_search_space(launch.paths) if launch.searched else None
    own = compute_frozen_signature(load_frozen_config(launch, run), search, run)
    return chain_signature(
        own,
        combine_signatures(
            launch.runs[index].signature for index in list_prerequisite_runs(launch.stages, run)
        ),
    )


def refuse_missing_installation(launch: Launch, context: Context) -> None:
    """Raise UsageError if the Python of the launch's runs or its hpckit is gone; starts it."""
    refuse_missing_python(launch)
    own = launch.cluster.python is not None or launch.python == sys.executable
    if not own and capture_python_environment(launch.python, context.environ) is None:
        raise missing_python_error(
            f"hpckit is no longer installed for {launch.python}, with which {launch.id} ran"
        )
