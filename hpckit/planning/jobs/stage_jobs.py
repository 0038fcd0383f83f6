"""The jobs of a launch with stages: which runs share one, and which jobs it waits for. Pure.

Jobs of stages that follow each other point by point hold the same points in the same order, so that
each run follows exactly the run of its point.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

from hpckit.errors import ConfigError
from hpckit.model.cluster.site import SubmitLimits
from hpckit.model.history import LaunchHistory
from hpckit.model.ids import JobId
from hpckit.model.plan import JobSpec, SweepPoint
from hpckit.model.stages import (
    DependencyType,
    Stage,
    StageDependency,
    find_stage_dependency_of_run,
    find_stage_of_run,
    list_prerequisite_runs,
)
from hpckit.planning.jobs.shared_jobs import (
    Asked,
    build_job_of_runs,
    do_runs_share_jobs,
    split_runs_into_arrays,
)
from hpckit.values import replace


def build_stage_jobs(
    launch: str, asked: Sequence[Asked], stages: Sequence[Stage], limits: SubmitLimits
) -> tuple[JobSpec, ...]:
    """Return the jobs of all runs, each after the jobs that it follows.

    `asked` is what each run asks for. If the limits split a stage into several arrays, the stages that follow
    it point by point are split into arrays of the same points, each directly after the one it follows.
    """
    jobs: list[JobSpec] = []
    for block in _group_stages_linked_by_point(stages):
        columns = _split_points_into_arrays(block, asked, limits)
        parts = [(place, stage, part) for part in columns for place, stage in enumerate(block)]
        for _, stage, part in parts:
            runs = tuple(stage.first + position for position in part)
            job = build_job_of_runs(len(jobs), launch, runs, asked[runs[0]])
            jobs.append(replace(job, after=find_stage_dependencies(job, stages, jobs)))
    return tuple(jobs)


def _group_stages_linked_by_point(stages: Sequence[Stage]) -> list[list[Stage]]:
    blocks: list[list[Stage]] = []
    for stage in stages:
        if blocks and stage.after is DependencyType.aftercorr:
            blocks[-1].append(stage)
        else:
            blocks.append([stage])
    return blocks


def _split_points_into_arrays(
    block: Sequence[Stage], asked: Sequence[Asked], limits: SubmitLimits
) -> Iterator[tuple[int, ...]]:
    groups: dict[Hashable, list[int]] = {}
    for position in range(block[0].count):
        key = tuple(asked[stage.first + position] for stage in block)
        groups.setdefault(key, []).append(position)
    share = replace(
        limits, queued=_divide_limit(limits.queued, len(block)), jobs=_divide_limit(limits.jobs, len(block))
    )
    for positions in groups.values():
        yield from split_runs_into_arrays(positions, share)


def _divide_limit(limit: int | None, count: int) -> int | None:
    return None if limit is None else limit // count


def find_stage_dependencies(
    job: JobSpec, stages: Sequence[Stage], jobs: Sequence[JobSpec]
) -> tuple[StageDependency, ...]:
    """Return the jobs of the previous stage, among these jobs, that a job waits for."""
    place = find_stage_of_run(stages, job.runs[0])
    if not place:
        return ()
    own, before = stages[place], stages[place - 1]
    kind, wanted = own.after, set(before.runs)
    if kind is DependencyType.aftercorr:
        wanted = {before.first + run - own.first for run in job.runs}
    return tuple(StageDependency(job=job.index, kind=kind) for job in jobs if not wanted.isdisjoint(job.runs))


def build_resubmitted_stage_jobs(
    launch: str,
    runs: Sequence[int],
    stages: Sequence[Stage],
    *,
    asked: Callable[[int], Asked],
    first_index: int,
) -> tuple[JobSpec, ...]:
    """Return the jobs of runs that are submitted again, stage by stage.

    Runs share a job if they ask for the same and also follow runs that share one. `first_index` is
    the number of jobs that the launch has by now.
    """
    jobs: list[JobSpec] = []
    carrier: dict[int, int] = {}
    for stage in stages:
        groups: dict[Hashable, list[int]] = {}
        for run in (index for index in runs if index in stage.runs):
            behind = None  # or the added job of the run of the same point in the previous stage
            if stage.after is DependencyType.aftercorr:
                before = stages[find_stage_of_run(stages, run) - 1]
                behind = carrier.get(before.first + run - stage.first)
            groups.setdefault((asked(run), behind), []).append(run)
        for members in groups.values():
            index = first_index + len(jobs)
            carrier |= dict.fromkeys(members, index)
            job = build_job_of_runs(index, launch, members, asked(members[0]))
            jobs.append(replace(job, after=find_stage_dependencies(job, stages, jobs)))
    return tuple(jobs)


def check_stages(points: Sequence[SweepPoint]) -> None:
    """Raise ConfigError if runs of stages cannot follow each other as configured."""
    last = points[-1].stage
    for point in points:
        settings = point.settings
        if point.stage is not None and do_runs_share_jobs(settings):
            raise ConfigError(
                "sweep.runs_per_job and runs_per_gpu let runs share a job, but runs of stage "
                f"{point.stage} and of other stages wait for each other one by one",
                hint="leave them at 1 in an experiment with stages",
            )
        if settings.recovery.queue_successor and point.stage != last:
            raise ConfigError(
                f"recovery.queue_successor is on in stage {point.stage}: its run would end with "
                "its first job, and the next stage would begin, or be cancelled, too early",
                hint="in stages let Slurm requeue the job: recovery.requeue=true "
                "recovery.queue_successor=false",
            )
        if point.stage != points[0].stage and "?" in (settings.resources.dependency or ""):
            raise ConfigError(
                f"resources.dependency is {settings.resources.dependency!r}: alternatives cannot "
                f"be combined with what stage {point.stage} waits for",
                hint="separate the jobs by a comma: the run then waits for all of them",
            )


def build_slurm_dependency(
    job: JobSpec, stages: Sequence[Stage], history: LaunchHistory, living: Collection[str] | None = None
) -> str | None:
    """Return the job's dependency in Slurm's words, None if it has none.

    It is as exact as Slurm can express. If a job follows jobs that a resume has split up, it only
    waits for their end, and each run checks for itself whether it may begin.

    `living` are the main jobs that are still in Slurm's queue, null if all of the launch's are.
    Other jobs need no waiting.
    """
    kind = find_stage_dependency_of_run(stages, job.runs[0]) if job.runs else None
    if kind is None:
        return None
    before = _list_prerequisites_of_job(job, stages, kind)
    present = {run: JobId.parse(history.slurm_jobs[run]) for run in before if run in history.slurm_jobs}
    mains = dict.fromkeys(job_id.main for job_id in present.values())
    there = [main for main in mains if living is None or str(main) in living]
    if not there:
        return None
    if kind is DependencyType.aftercorr and job.is_array:
        elements = [JobId(there[0], element) for element in range(len(job.runs))]
        if [present.get(run) for run in before] == elements:
            return f"{DependencyType.aftercorr}:{there[0]}"
        kind = DependencyType.afterany
    if kind is DependencyType.afterany:
        return f"{kind}:{':'.join(map(str, there))}"
    sizes = {int(main): len(history.jobs[index].runs) for index, main in history.accepted.items()}
    names = [name for main in there for name in _format_array_or_element_ids(main, sizes, present)]
    return f"{DependencyType.afterok}:{':'.join(names)}"


def _list_prerequisites_of_job(job: JobSpec, stages: Sequence[Stage], kind: DependencyType) -> list[int]:
    if kind is DependencyType.aftercorr:
        return [one for run in job.runs for one in list_prerequisite_runs(stages, run)]
    return list(list_prerequisite_runs(stages, job.runs[0]))


def _format_array_or_element_ids(
    main: int, sizes: Mapping[int, int], present: Mapping[int, JobId]
) -> list[str]:
    """Return the whole array, or only the elements whose runs still belong to it."""
    own = [str(job_id) for job_id in present.values() if job_id.main == main]
    return [str(main)] if len(own) == sizes.get(main) else own


def format_dependency_template(job: JobSpec) -> str | None:
    """Return the dependency on the previous stage, with `$JOB0` in place of Slurm's id of job 0."""
    if not job.after:
        return None
    return f"{job.after[0].kind}:{':'.join(f'$JOB{dependency.job}' for dependency in job.after)}"
