"""Runs in jobs: how many a cluster takes as one array, and several runs in one job. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from statistics import fmean

from hpckit.errors import ConfigError
from hpckit.model.cluster.gpus_asked import requested_gpus_per_node
from hpckit.model.cluster.site import SubmitLimits
from hpckit.model.counted import format_count
from hpckit.model.failure import Cause, Trait
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec, SharedJobSpec
from hpckit.model.search import Sampler
from hpckit.model.states import RunState
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, replace

BACKLOG_JOBS = 1
"""Jobs that hpckit itself queues to submit what did not fit."""

_OURS = 3
"""hpckit's own jobs next to two arrays: the backlog job, the next one, and an auto-resume job."""

LEARNING = 4
"""How many runs of an adaptive sweep run at a time by default; all at once could learn nothing."""

_GRES = lazy_pattern(r"(?P<what>.*?)(?::(?P<count>\d+))?(?P<where>\([^)]*\))?\Z")
_OF_A_JOB = frozenset({"gpus", "mem", "ntasks-per-gpu", "tres-per-job"})
"""Options of sbatch that count for the whole job, while resources are those of one run."""

_NEARLY = 0.95
"""A run that used this share of its time limit reached its own limit, not that of its job."""


def split_runs_into_arrays(runs: Sequence[int], limits: SubmitLimits) -> tuple[tuple[int, ...], ...]:
    """Return the runs in order, in as few arrays as the cluster accepts.

    If not all of them can be queued at a time, an array is half of what can, so that the next array
    is already in the queue while one ends.
    """
    size = _choose_array_size(len(runs), limits)
    return tuple(tuple(runs[start : start + size]) for start in range(0, len(runs), size))


def _choose_array_size(count: int, limits: SubmitLimits) -> int:
    sizes = [count]
    if limits.max_array_elements is not None:
        sizes.append(limits.max_array_elements)
    bounds = [bound for bound in (limits.queued, limits.jobs) if bound is not None]
    if bounds and count > min(bounds) - BACKLOG_JOBS:
        sizes.append((min(bounds) - _OURS) // 2)
    return max(1, min(sizes))


def find_max_concurrent_runs(settings: LaunchConfig) -> int | None:
    """Return how many runs of this size may run at a time in the launch; null means no bound.

    Raises ConfigError if not even one may.
    """
    sweep, resources = settings.sweep, settings.resources
    concurrent = sweep.max_concurrent
    if concurrent is None and sweep.sampler is Sampler.optuna:
        concurrent = LEARNING
    bounds = [] if concurrent is None else [concurrent]
    gpus = (requested_gpus_per_node(resources) or 0) * (resources.nodes + resources.spare_nodes)
    if sweep.max_gpus is not None and gpus:
        bounds.append(max_runs_on_gpus(sweep.max_gpus, gpus))
    return min(bounds, default=None)


def max_runs_on_gpus(max_gpus: int, gpus: int) -> int:
    """Return how many runs of `gpus` GPUs each may run at a time under sweep.max_gpus.

    Raises ConfigError if not even one may.
    """
    if gpus > max_gpus:
        raise ConfigError(
            f"sweep.max_gpus is {max_gpus}, and one run asks for {gpus} GPUs",
            hint=f"allow at least {gpus}, or ask for fewer: resources.gpus_per_node=...",
        )
    return max_gpus // gpus


def do_runs_share_jobs(settings: LaunchConfig) -> bool:
    """Whether runs are to share jobs; the local executor has `max_parallel` instead of jobs."""
    sweep = settings.sweep
    several = sweep.runs_per_job > 1 or sweep.runs_per_gpu > 1
    return several and settings.cluster.kind is not ClusterKind.local


def check_runs_can_share_job(settings: LaunchConfig) -> None:
    """Raise ConfigError if runs with these settings cannot share a job."""
    if not do_runs_share_jobs(settings):
        return
    successor = str(settings.recovery.queue_successor).lower()
    for key, value, allowed in (
        ("resources.nodes", settings.resources.nodes, 1),
        ("resources.spare_nodes", settings.resources.spare_nodes, 0),
        ("recovery.queue_successor", successor, "false"),
    ):
        if value != allowed:
            raise ConfigError(
                f"{key} is {value}, and runs that share a job (sweep.runs_per_job="
                f"{settings.sweep.runs_per_job}, runs_per_gpu={settings.sweep.runs_per_gpu}) need "
                f"{allowed}",
                hint=f"set {key}={allowed}, or sweep.runs_per_job=1 sweep.runs_per_gpu=1",
            )
    _check_gpu_sharing(settings)
    _check_job_outlasts_one_run(settings)
    for name in settings.resources.additional_parameters:
        if name.replace("_", "-") in _OF_A_JOB:
            raise ConfigError(
                f"resources.additional_parameters.{name} would count for the whole job, and "
                f"{settings.sweep.runs_per_job} runs share it: resources are those of one run",
                hint="use resources.gpus_per_node, resources.mem_gb or resources.gres",
            )


def _check_gpu_sharing(settings: LaunchConfig) -> None:
    sweep, resources = settings.sweep, settings.resources
    gpus = requested_gpus_per_node(resources) or 0
    if sweep.runs_per_gpu > 1 and gpus != 1:
        raise ConfigError(
            f"sweep.runs_per_gpu is {sweep.runs_per_gpu}, and one run asks for {gpus} GPUs; runs "
            "that share a GPU must request exactly one GPU each",
            hint="set resources.gpus_per_node=1, or sweep.runs_per_gpu=1",
        )
    if sweep.max_gpus is not None and gpus:
        max_runs_on_gpus(sweep.max_gpus, gpus)


def _check_job_outlasts_one_run(settings: LaunchConfig) -> None:
    whole, own = settings.sweep.job_timeout_min, settings.resources.timeout_min
    if whole is not None and (own is None or whole < own):
        raise ConfigError(
            f"sweep.job_timeout_min is {whole}, and that of one run (resources.timeout_min) is "
            f"{'not set' if own is None else own}; a job must be at least as long as one run",
            hint=f"set resources.timeout_min to at most {whole}, or sweep.job_timeout_min=null",
        )


def plan_shared_job(
    count: int, settings: LaunchConfig, each: ResourceSpec, limits: SubmitLimits
) -> SharedJobSpec:
    """Return how `count` runs with these settings share jobs.

    There are enough jobs to run all runs at once, within the bounds of the sweep and of the
    cluster; their slots take one run after the other. Raises ConfigError if `sweep.max_gpus` is too
    small for one run, or a node for one job.
    """
    sweep = settings.sweep
    per_gpu, gpus = sweep.runs_per_gpu, requested_gpus_per_node(each) or 0
    per_job, most = max(sweep.runs_per_job, per_gpu), _max_queued_jobs(limits)
    if gpus and sweep.max_gpus is not None:
        per_job = min(per_job, max_runs_on_gpus(sweep.max_gpus, gpus) * per_gpu)
        by_gpus = sweep.max_gpus // _count_gpus_for_slots(per_job, gpus, per_gpu)
        most = by_gpus if most is None else min(most, by_gpus)
    asked = SharedJobSpec(
        runs_per_job=per_job,
        runs_per_gpu=per_gpu,
        slots=1,
        jobs=1,
        each=each,
        at_a_time=sweep.max_concurrent,
        most_jobs=most,
        timeout=None if sweep.job_timeout_min is None else timedelta(minutes=sweep.job_timeout_min),
        mps=sweep.mps,
    )
    found = resize_shared_job(asked, count)
    _check_runs_fit_node(found, settings)
    return found


def resize_shared_job(asked: SharedJobSpec, count: int) -> SharedJobSpec:
    """Return the same request for another number of runs."""
    bound = asked.at_a_time
    per_job = asked.runs_per_job if bound is None else min(asked.runs_per_job, bound)
    bounds = [-(-count // per_job)]
    if bound is not None:
        bounds.append(bound // per_job)
    if asked.most_jobs is not None:
        bounds.append(asked.most_jobs)
    jobs = max(1, min(bounds))
    # Slots that no run would ever need are not requested.
    return replace(asked, jobs=jobs, slots=min(per_job, -(-count // jobs)))


def _max_queued_jobs(limits: SubmitLimits) -> int | None:
    """Return how many jobs of one array may be queued, with room for hpckit's own jobs."""
    bounds = [] if limits.max_array_elements is None else [limits.max_array_elements]
    queued = [bound - BACKLOG_JOBS for bound in (limits.queued, limits.jobs) if bound is not None]
    return max(1, min(bounds + queued)) if bounds or queued else None


def compute_shared_job_resources(spec: SharedJobSpec, count: int) -> ResourceSpec:
    """Return the resources of one job if `count` runs share all the jobs.

    Unless it is configured, its time limit is long enough for every run to use its own, however
    they follow each other.
    """
    each, slots = spec.each, spec.slots
    rounds = -(-count // (slots * spec.jobs))
    return replace(
        each,
        tasks_per_node=each.tasks_per_node * slots,
        gpus_per_node=_count_gpus_for_slots(slots, each.gpus_per_node, spec.runs_per_gpu),
        mem_gb=None if each.mem_gb is None else each.mem_gb * slots,
        gres=None if each.gres is None else _multiply_gres_by_slots(each.gres, slots, spec.runs_per_gpu),
        timeout=spec.timeout or (None if each.timeout is None else each.timeout * rounds),
        array_parallelism=min(each.array_parallelism, spec.jobs),
    )


Asked = tuple[ResourceSpec, bool]
"""What one run asks of Slurm, and whether its job is requeued."""


def build_job_of_runs(index: int, launch: str, runs: Sequence[int], asked: Asked) -> JobSpec:
    """Return the job of runs that ask for the same; the first one has the name of the launch."""
    name, (resources, requeue) = launch if index == 0 else f"{launch}-{index}", asked
    return JobSpec(index=index, name=name, runs=tuple(runs), resources=resources, requeue=requeue)


def build_shared_job(
    index: int, launch: str, runs: Sequence[int], spec: SharedJobSpec, *, requeue: bool
) -> JobSpec:
    """Return the job whose elements work through these runs."""
    asked = (compute_shared_job_resources(spec, len(runs)), requeue)
    return replace(build_job_of_runs(index, launch, runs, asked), shared_job=spec)


def sort_runs_longest_first(runs: Sequence[int], lasted: Mapping[int, timedelta]) -> tuple[int, ...]:
    """Return the runs in the order in which slots take them; `lasted` are the known durations.

    The longest comes first, so that no long run starts last while all other slots are free. A run
    of unknown duration counts as an average one; ties keep their order.
    """
    known = [lasted[run].total_seconds() for run in runs if run in lasted]
    if not known:
        return tuple(runs)
    mean = timedelta(seconds=fmean(known))
    return tuple(sorted(runs, key=lambda run: -lasted.get(run, mean)))


def sort_plan_longest_first(plan: LaunchPlan, lasted: Mapping[str, timedelta]) -> LaunchPlan:
    """Return the plan with the runs of shared jobs longest first, matched by their signatures."""
    known = {run.index: lasted[run.signature] for run in plan.runs if run.signature in lasted}
    jobs = (
        job if job.shared_job is None else replace(job, runs=sort_runs_longest_first(job.runs, known))
        for job in plan.jobs
    )
    return replace(plan, jobs=tuple(jobs))


def _count_gpus_for_slots(slots: int, each: int, per_gpu: int) -> int:
    return -(-slots // per_gpu) if each == 1 else slots * each


def _multiply_gres_by_slots(text: str, slots: int, per_gpu: int) -> str:
    words = re.split(r",(?![^(]*\))", text)
    return ",".join(_multiply_one_gres_by_slots(word.strip(), slots, per_gpu) for word in words)


def _multiply_one_gres_by_slots(word: str, slots: int, per_gpu: int) -> str:
    match = _GRES.match(word)
    if match is None:
        return word
    count = int(match["count"] or 1)
    wanted = (
        _count_gpus_for_slots(slots, count, per_gpu) if match["what"].startswith("gpu") else count * slots
    )
    return f"{match['what']}:{wanted}{match['where'] or ''}"


def _check_runs_fit_node(spec: SharedJobSpec, settings: LaunchConfig) -> None:
    each, cluster = spec.each, settings.cluster
    gpus = (
        _count_gpus_for_slots(spec.slots, each.gpus_per_node, spec.runs_per_gpu) if each.gpus_per_node else 0
    )
    if 0 < cluster.gpus_per_node < gpus:
        fitting = cluster.gpus_per_node // each.gpus_per_node * spec.runs_per_gpu
        raise ConfigError(
            f"{spec.slots} runs that share a job (sweep.runs_per_job) ask for {gpus} GPUs, but a "
            f"node of this cluster has {cluster.gpus_per_node} (cluster.gpus_per_node)",
            hint=f"set sweep.runs_per_job={fitting}, or let more runs share a GPU: sweep.runs_per_gpu=N",
        )
    own = each.tasks_per_node * each.cpus_per_task
    has = cluster.cpus_per_node
    if has is not None and own * spec.slots > has:
        raise ConfigError(
            f"{spec.slots} runs that share a job (sweep.runs_per_job) ask for {spec.slots} x "
            f"{format_count(own, 'CPU')} = {own * spec.slots}, but a node of this cluster has "
            f"{has} (cluster.cpus_per_node)",
            hint=f"set sweep.runs_per_job={max(1, has // own)} or less",
        )


def list_runs_waiting_for_slot(job: JobSpec, history: LaunchHistory, claimed: Collection[int]) -> list[int]:
    """Return the runs of a shared job that wait for a free slot, the next one first."""
    return [
        run
        for run in job.runs
        if run not in claimed
        and run not in history.cancelled
        and (run not in history.resumed or history.resumed[run].job_index == job.index)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """How an attempt in a shared job ended.

    `again` is whether its supervisor asked for a new one. `took` is how long it lasted. `stopped`
    is whether the whole shared job was asked to stop. `spent` is whether its budgets are used up.
    """

    state: RunState
    cause: Cause | None
    again: bool
    took: timedelta
    stopped: bool
    spent: bool = False


def does_run_wait_for_slot_again(ended: EndedAttempt, spec: SharedJobSpec) -> bool:
    """Whether a run waits for a free slot again, instead of ending with its attempt."""
    if ended.state is not RunState.interrupted or ended.spent:
        return False
    if ended.again or ended.cause is Cause.launcher_lost:
        return True
    if ended.cause is Cause.time_limit:
        # At its own time limit a run is over, like a run that has a job to itself.
        limit = spec.each.timeout
        return ended.stopped and limit is not None and ended.took < limit * _NEARLY
    return ended.stopped and ended.cause is not None and ended.cause.has_trait(Trait.of_the_job)
