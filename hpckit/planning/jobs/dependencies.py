"""The Slurm dependency of a job of a stage. Pure.

The dependency is as exact as Slurm can express. If a job follows jobs that a resume has split up,
it only waits for their end, and each run checks for itself whether it may begin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hpckit.model.history import LaunchHistory
from hpckit.model.ids import JobId
from hpckit.model.plan import JobSpec
from hpckit.model.stages import DependencyType, Stage, followed, kind_of


def waits(
    job: JobSpec,
    stages: Sequence[Stage],
    history: LaunchHistory,
    living: Collection[str] | None = None,
) -> str | None:
    """Return the job's dependency, None if it has none.

    `living` are the main jobs that are still in Slurm's queue, null if all of the launch's are.
    Other jobs need no waiting.
    """
    kind = kind_of(stages, job.runs[0]) if job.runs else None
    if kind is None:
        return None
    before = _before(job, stages, kind)
    present = {
        run: JobId.parse(history.slurm_jobs[run]) for run in before if run in history.slurm_jobs
    }
    mains = dict.fromkeys(one.main for one in present.values())
    there = [main for main in mains if living is None or str(main) in living]
    if not there:
        return None
    if kind is DependencyType.aftercorr and job.is_array:
        if [present.get(run) for run in before] == _elements(there[0], len(job.runs)):
            return f"{DependencyType.aftercorr}:{there[0]}"
        kind = DependencyType.afterany
    if kind is DependencyType.afterany:
        return f"{kind}:{':'.join(map(str, there))}"
    sizes = {int(main): len(history.jobs[index].runs) for index, main in history.accepted.items()}
    names = [name for main in there for name in _names(main, sizes, present)]
    return f"{DependencyType.afterok}:{':'.join(names)}"


def _before(job: JobSpec, stages: Sequence[Stage], kind: DependencyType) -> list[int]:
    if kind is DependencyType.aftercorr:
        return [one for run in job.runs for one in followed(stages, run)]
    return list(followed(stages, job.runs[0]))


def _elements(main: int, count: int) -> list[JobId]:
    return [JobId(main, element) for element in range(count)]


def _names(main: int, sizes: Mapping[int, int], present: Mapping[int, JobId]) -> list[str]:
    """Return the whole array, or only the elements whose runs still belong to it."""
    own = [str(one) for one in present.values() if one.main == main]
    return [str(main)] if len(own) == sizes.get(main) else own


def stage_dependency(job: JobSpec) -> str | None:
    """Return the dependency on the previous stage, with `$JOB0` in place of Slurm's id of job 0."""
    if not job.after:
        return None
    return f"{job.after[0].kind}:{':'.join(f'$JOB{one.job}' for one in job.after)}"
