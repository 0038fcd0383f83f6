"""Which runs will not begin because a run of an earlier stage did not complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpckit.model.run import RunView
from hpckit.model.stages import (
    DependencyType,
    Stage,
    find_stage_dependency_of_run,
    find_stage_of_run,
    list_prerequisite_runs,
)
from hpckit.model.states import RunState
from hpckit.values import replace


def mark_runs_that_cannot_start(
    views: Iterable[RunView],
    stages: Sequence[Stage],
    *,
    unborn: Iterable[int] = (),
    resumed: Mapping[int, int] | None = None,
) -> tuple[RunView, ...]:
    """Return the views, with the reason in the views of runs that will not begin.

    `views` also holds the runs that each of them follows. `unborn` are runs that are not submitted
    yet; they are left as they are. `resumed` maps a run to the index of the added job that it was
    given to last: a run that waits for an earlier job of such a run will not begin either.
    """
    given = resumed or {}
    waiting, known = set(unborn), {view.record.index: view for view in views}
    culprits: dict[range, RunView | None] = {}
    for index in sorted(known):
        view = known[index]
        if (
            index in waiting
            or not _is_unstarted_without_job(view)
            or not _needs_previous_stage_success(stages, index)
        ):
            continue
        before = list_prerequisite_runs(stages, index)
        if before not in culprits:
            culprits[before] = _find_unsuccessful_prerequisite(before, known)
        culprit = culprits[before]
        stage = stages[find_stage_of_run(stages, index) - 1].name
        if culprit is not None:
            known[index] = replace(view, blocked=_explain_blocked_run(stage, culprit))
        elif late := _list_prerequisites_resumed_later(index, before, given):
            reason = f"stage {stage} did not complete in time (run {late[0]}, resumed later)"
            known[index] = replace(view, blocked=reason)
    return tuple(known.values())


def _list_prerequisites_resumed_later(index: int, before: range, given: Mapping[int, int]) -> list[int]:
    """Return the runs that continued in a job that was added after this run's own."""
    return [run for run in before if given.get(run, -1) > given.get(index, -1)] if given else []


def _needs_previous_stage_success(stages: Sequence[Stage], run: int) -> bool:
    return find_stage_dependency_of_run(stages, run) in {DependencyType.afterok, DependencyType.aftercorr}


def _is_unstarted_without_job(view: RunView) -> bool:
    if view.record.has_attempt_begun or view.record.cancel_requested:
        return False
    if view.observation is not None:
        return view.observation.state.ended
    # If Slurm was not asked about the job, the job may still be waiting.
    return view.asked or view.record.job is None


def _find_unsuccessful_prerequisite(before: Iterable[int], known: Mapping[int, RunView]) -> RunView | None:
    for run in before:
        view = known.get(run)
        if view is not None and view.can_no_longer_change and view.state is not RunState.completed:
            return view
    return None


def _explain_blocked_run(stage: str, culprit: RunView) -> str:
    """Return the reason, taken from the run that caused it first."""
    if culprit.blocked:
        return culprit.blocked
    failure = culprit.record.failure
    words = f": {failure.cause}: {failure.message}" if failure is not None else ""
    return f"stage {stage} {HAS_ENDED[culprit.state]} (run {culprit.record.index}{words})"


HAS_ENDED = {
    RunState.completed: "completed",
    RunState.failed: "failed",
    RunState.cancelled: "was cancelled",
    RunState.interrupted: "was interrupted",
    RunState.unknown: "has no known end",
}
