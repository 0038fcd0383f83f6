"""Which runs to submit again, and as which jobs. Pure: same views, same answer.

Responsible for telling runs that are over from those that may still go on, and for grouping; it
must not look at files, clock or scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from hpckit.model.plan import JobSpec, ResourceSpec, SharedJobSpec
from hpckit.model.run import RunView
from hpckit.model.stages import Stage
from hpckit.model.states import RunState
from hpckit.planning.jobs.shared_jobs import longest_first, merged_job, shared_again
from hpckit.planning.jobs.stage_jobs import Asked, added_stage_jobs
from hpckit.planning.recovery.resume_stages import with_stages

_SINGLETON = "singleton"
"""The one dependency that is about the moment, not about a job that is over by now."""


_WAITS = "it waits already"
_RUNS = "it is running"
_UNSETTLED = "Slurm may still start it again by itself"
_GOING_ON = frozenset({_WAITS, _RUNS, _UNSETTLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What views do not tell: runs nobody was ever given, and those that perhaps somebody was.

    `spent` says of runs whose budgets are used up why they are not started again.
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
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The runs to submit again (indices), and all others; `open` are those that still go on."""

    resumed: tuple[int, ...]
    skipped: tuple[Skipped, ...]
    open: tuple[int, ...]


def choose(
    views: Iterable[RunView], known: Known, *, cancelled: bool, stages: Sequence[Stage] = ()
) -> Choice:
    """Return which runs are to be submitted again; `cancelled` is whether those count, too."""
    reasons = {
        view.record.index: (view, _reason(view, known, cancelled=cancelled)) for view in views
    }
    if stages:
        reasons = with_stages(reasons, stages, _GOING_ON)
    return Choice(
        resumed=tuple(index for index, (_, reason) in reasons.items() if reason is None),
        skipped=tuple(
            Skipped(run=view.record.id, index=index, state=view.state, reason=reason)
            for index, (view, reason) in reasons.items()
            if reason is not None
        ),
        open=tuple(index for index, (_, reason) in reasons.items() if reason in _GOING_ON),
    )


def _reason(view: RunView, known: Known, *, cancelled: bool) -> str | None:
    """Return why a run is left alone, or None where it is to be submitted again."""
    index = view.record.index
    if view.state is RunState.completed:
        return "completed"
    if index in known.doubtful:
        return "it is not known whether Slurm accepted it: see `hpckit doctor`"
    if view.state is RunState.cancelled and not cancelled:
        return "it was cancelled: name the run, or add --cancelled"
    if view.state is RunState.pending and index in known.unsubmitted:
        return None
    if view.state in {RunState.pending, RunState.running}:
        return _WAITS if view.state is RunState.pending else _RUNS
    return known.spent.get(index) if view.settled else _UNSETTLED


def added_jobs_of_stages(
    launch: str,
    runs: Iterable[int],
    stages: Sequence[Stage],
    *,
    job_of: Callable[[int], JobSpec],
    begun: Collection[int],
    first_index: int,
) -> tuple[JobSpec, ...]:
    """Return the jobs of these runs of stages, which follow each other as they did before.

    `begun` and `first_index` are those of `added_jobs`.
    """

    def asked(run: int) -> Asked:
        job = job_of(run)
        return _without_dependency(job.resources) if run in begun else job.resources, job.requeue

    return added_stage_jobs(launch, tuple(runs), stages, asked=asked, first_index=first_index)


def added_jobs(
    launch: str,
    runs: Iterable[int],
    *,
    job_of: Callable[[int], JobSpec],
    begun: Collection[int],
    first_index: int,
    lasted: Mapping[int, timedelta] | None = None,
) -> tuple[JobSpec, ...]:
    """Return the jobs of these runs: one for all that ask the same of Slurm, as they did before.

    `begun` are runs that had an attempt: what those depended on has come about, and Slurm may not
    know those jobs any more. `first_index` is the number of jobs the launch has by now, `lasted`
    how long runs have taken until now: those that share jobs go on with the longest.
    """
    groups: dict[tuple[ResourceSpec, bool, SharedJobSpec | None], list[int]] = {}
    for run in runs:
        job = job_of(run)
        asked = job.resources if job.shared_job is None else job.shared_job.each
        resources = _without_dependency(asked) if run in begun else asked
        groups.setdefault((resources, job.requeue, _wish(job, resources)), []).append(run)
    return tuple(
        JobSpec(
            index=index,
            name=f"{launch}-{index}",
            runs=tuple(members),
            resources=resources,
            requeue=requeue,
        )
        if wish is None
        else merged_job(
            index,
            f"{launch}-{index}",
            longest_first(members, lasted or {}),
            shared_again(wish, len(members)),
            requeue=requeue,
        )
        for index, ((resources, requeue, wish), members) in enumerate(groups.items(), first_index)
    )


def _wish(job: JobSpec, each: ResourceSpec) -> SharedJobSpec | None:
    """Return how runs of a job want to share jobs, whatever their number."""
    return None if job.shared_job is None else replace(job.shared_job, each=each, slots=1, jobs=1)


def _without_dependency(resources: ResourceSpec) -> ResourceSpec:
    if resources.dependency is None:
        return resources
    words = resources.dependency.replace("?", ",").split(",")
    return replace(resources, dependency=_SINGLETON if _SINGLETON in words else None)
