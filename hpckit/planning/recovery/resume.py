"""Which runs to submit again, and as which jobs. Pure: same views, same answer.

Separates runs that are over from those that are still under way, and groups them into jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from hpckit.model.plan import JobSpec, ResourceSpec, SharedJobSpec
from hpckit.model.run import RunView
from hpckit.model.stages import DependencyType, Stage, find_stage_dependency_of_run, list_prerequisite_runs
from hpckit.model.states import Judgement, RunState, Standing
from hpckit.planning.jobs.shared_jobs import (
    Asked,
    build_job_of_runs,
    build_shared_job,
    resize_shared_job,
    sort_runs_longest_first,
)
from hpckit.planning.jobs.stage_jobs import build_resubmitted_stage_jobs
from hpckit.values import dataclass, field, replace

_SINGLETON = "singleton"
"""The one dependency that does not refer to a particular job, which would be over by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the views do not show.

    `unsubmitted` are runs that were never submitted, `doubtful` runs that may have been submitted.
    `spent` says, for runs whose budgets are used up, why they are not started again.
    """

    unsubmitted: Collection[int] = frozenset()
    doubtful: Collection[int] = frozenset()
    spent: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A run that is left alone, and why."""

    run: str
    index: int
    state: RunState
    why: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The runs to submit again (indices), and all others; `open` are those under way."""

    resumed: tuple[int, ...]
    skipped: tuple[Skipped, ...]
    open: tuple[int, ...]


def choose_runs_to_resume(
    views: Iterable[RunView], known: Known, *, cancelled: bool, stages: Sequence[Stage] = ()
) -> Choice:
    """Return which runs to submit again; `cancelled` is whether to include cancelled runs."""
    judged = {
        view.record.index: (view, _judge_whether_to_resume_run(view, known, cancelled=cancelled))
        for view in views
    }
    if stages:
        judged = adjust_resume_choice_to_stages(judged, stages)
    return Choice(
        resumed=tuple(index for index, (_, why) in judged.items() if why.standing is Standing.resumable),
        skipped=tuple(
            Skipped(run=view.record.id, index=index, state=view.state, why=why)
            for index, (view, why) in judged.items()
            if why.standing is not Standing.resumable
        ),
        open=tuple(index for index, (_, why) in judged.items() if why.standing.may_progress_by_itself),
    )


def _judge_whether_to_resume_run(view: RunView, known: Known, *, cancelled: bool) -> Judgement:
    standing = classify_run_for_resume(view, known, cancelled=cancelled)
    detail = known.spent[view.record.index] if standing is Standing.spent else ""
    return Judgement(standing=standing, detail=detail)


def classify_run_for_resume(view: RunView, known: Known, *, cancelled: bool) -> Standing:
    """Return the standing of a run by itself, regardless of the runs it follows."""
    index, state = view.record.index, view.state
    if state is RunState.completed:
        return Standing.completed
    if index in known.doubtful:
        return Standing.unconfirmed
    if state is RunState.cancelled and not cancelled:
        return Standing.cancelled
    if state is RunState.pending:
        return Standing.resumable if index in known.unsubmitted else Standing.waiting
    return Standing.running if state is RunState.running else _classify_ended_run_for_resume(view, known)


def _classify_ended_run_for_resume(view: RunView, known: Known) -> Standing:
    if not view.can_no_longer_change:
        return Standing.unsettled
    return Standing.spent if view.record.index in known.spent else Standing.resumable


def build_resumed_stage_jobs(
    launch: str,
    runs: Iterable[int],
    stages: Sequence[Stage],
    *,
    job_of: Callable[[int], JobSpec],
    begun: Collection[int],
    first_index: int,
) -> tuple[JobSpec, ...]:
    """Return the jobs of these runs of stages, which follow each other as before.

    `begun` and `first_index` are those of `build_resumed_jobs`.
    """

    def asked(run: int) -> Asked:
        job = job_of(run)
        return _drop_fulfilled_dependency(job.resources) if run in begun else job.resources, job.requeue

    return build_resubmitted_stage_jobs(launch, tuple(runs), stages, asked=asked, first_index=first_index)


def build_resumed_jobs(
    launch: str,
    runs: Iterable[int],
    *,
    job_of: Callable[[int], JobSpec],
    begun: Collection[int],
    first_index: int,
    lasted: Mapping[int, timedelta] | None = None,
) -> tuple[JobSpec, ...]:
    """Return the jobs of these runs: one for all that ask the same of Slurm, as before.

    `begun` are runs that had an attempt: their dependencies are fulfilled, and Slurm may no longer
    know those jobs. `first_index` is the number of jobs that the launch has by now. `lasted` is how
    long runs have taken so far: runs that share jobs continue with the longest first.
    """
    groups: dict[tuple[ResourceSpec, bool, SharedJobSpec | None], list[int]] = {}
    for run in runs:
        job = job_of(run)
        asked = job.resources if job.shared_job is None else job.shared_job.each
        resources = _drop_fulfilled_dependency(asked) if run in begun else asked
        # How the runs of a job share jobs, independent of their number.
        wish = job.shared_job and replace(job.shared_job, each=resources, slots=1, jobs=1)
        groups.setdefault((resources, job.requeue, wish), []).append(run)
    return tuple(
        build_job_of_runs(index, launch, members, (resources, requeue))
        if wish is None
        else build_shared_job(
            index,
            launch,
            sort_runs_longest_first(members, lasted or {}),
            resize_shared_job(wish, len(members)),
            requeue=requeue,
        )
        for index, ((resources, requeue, wish), members) in enumerate(groups.items(), first_index)
    )


def _drop_fulfilled_dependency(resources: ResourceSpec) -> ResourceSpec:
    if resources.dependency is None:
        return resources
    words = resources.dependency.replace("?", ",").split(",")
    return replace(resources, dependency=_SINGLETON if _SINGLETON in words else None)


Judged = dict[int, tuple[RunView, Judgement]]
"""The view and the judgement of each run."""

_AGAIN = Judgement(standing=Standing.resumable)


def adjust_resume_choice_to_stages(judged: Judged, stages: Sequence[Stage]) -> Judged:
    """Return the judgements of runs with the runs they follow taken into account.

    A blocked run is submitted again if every run it follows has completed, is under way, or is submitted
    again itself. A run that has reported on all runs of a stage is submitted again if one of those is.
    """
    found = dict(judged)
    known: dict[range, Judgement] = {}
    for index in sorted(found):
        view, own = found[index]
        before = list_prerequisite_runs(stages, index)
        if view.blocked:
            if before not in known:
                known[before] = _judge_whether_to_resume_blocked(before, found, view.blocked)
            found[index] = (view, known[before])
        elif _is_completed_afterany_run(view, stages) and any(
            run in found and found[run][1].standing is Standing.resumable for run in before
        ):
            found[index] = (view, _AGAIN)
        else:
            found[index] = (view, own)
    return found


def _is_completed_afterany_run(view: RunView, stages: Sequence[Stage]) -> bool:
    kind = find_stage_dependency_of_run(stages, view.record.index)
    return kind is DependencyType.afterany and view.state is RunState.completed


def _judge_whether_to_resume_blocked(
    before: range, found: Mapping[int, tuple[RunView, Judgement]], why: str
) -> Judgement:
    for run in before:
        if run not in found:
            return Judgement(standing=Standing.detached, follows=run)
        standing = found[run][1].standing
        if not (standing.may_progress_by_itself or standing in {Standing.resumable, Standing.completed}):
            return Judgement(standing=Standing.blocked, detail=why)
    return _AGAIN
