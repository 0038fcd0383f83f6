"""The state of a run in a shared job: what follows from the job's state, and what does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpckit.model.history import LaunchHistory
from hpckit.model.ids import JobId
from hpckit.model.plan import JobSpec
from hpckit.model.run import Observation, RunView
from hpckit.model.states import BaseState, RunState
from hpckit.values import replace

JobPool = tuple[str, ...]
"""The jobs, by Slurm's ids, that work through the same runs."""


def map_runs_to_shared_job_ids(history: LaunchHistory, runs: Iterable[int]) -> dict[int, JobPool]:
    """Return the pool of each of these runs that is in one."""
    packed = [job for job in history.jobs if job.shared_job is not None]
    pools: dict[int, JobPool] = {}
    for job in packed:
        pool = list_slurm_ids_of_shared_job(job, history.accepted.get(job.index))
        mine = (run for run in job.runs if _still_belongs_to_job(run, job, history))
        pools |= dict.fromkeys(mine, pool)
    wanted = set(runs) if pools else ()
    return {run: pool for run, pool in pools.items() if run in wanted}


def list_slurm_ids_of_shared_job(job: JobSpec, main: str | None) -> JobPool:
    """Return Slurm's ids of the elements of a shared job."""
    if main is None:
        return ()
    number = JobId.parse(main).main
    if not job.is_array:
        return (str(number),)
    return tuple(str(JobId(number, element)) for element in range(job.array_element_count))


def _still_belongs_to_job(run: int, job: JobSpec, history: LaunchHistory) -> bool:
    resumption = history.resumed.get(run)
    return resumption is None or resumption.job_index == job.index


def derive_view_in_shared_job(
    view: RunView, pool: JobPool, observations: Mapping[str, Observation], *, asked: bool
) -> RunView:
    """Return the view of a run from its own record, rather than from the job as a whole.

    The outcome of its attempt is the run's own end, whatever the job does next. A run that waits or
    was interrupted may be started while one of the jobs is alive; after that, its state is that of
    the jobs. `asked` is whether Slurm answered about these jobs.
    """
    record = view.record
    if record.has_attempt_begun and record.state.is_final:
        return RunView(record=record, asked=asked)
    if record.state is RunState.running:
        return view
    seen = [observations[job] for job in pool if job in observations]
    if any(not job.state.ended for job in seen):
        return _build_view_waiting_for_slot(view)
    if record.has_attempt_begun:
        return view
    failed = [job for job in seen if job.state.base is not BaseState.completed]
    return replace(view, observation=failed[0] if failed else None, asked=asked)


def _build_view_waiting_for_slot(view: RunView) -> RunView:
    wished = view.record.cancel_requested
    record = view.record.reset_to_pending()
    if wished:
        record = replace(record, state=RunState.cancelled)
    return RunView(record=record, asked=wished)
