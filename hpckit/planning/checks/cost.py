"""What a launch may cost in GPU-hours and CPU-hours, and whether that fits the budget. Pure.

The cost is an upper bound: each run uses its whole time limit once.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from hpckit.model.cluster.gpus_asked import count_allocated_gpus
from hpckit.model.cluster.site import Site
from hpckit.model.counted import format_count
from hpckit.model.finding import CostEstimate, Finding, build_error_finding
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec
from hpckit.planning.checks.limits import get_account_partition_qos, list_possible_partitions
from hpckit.planning.jobs.shared_jobs import compute_shared_job_resources
from hpckit.values import replace

_HOUR = timedelta(hours=1)


def estimate_launch_cost(plan: LaunchPlan, site: Site) -> CostEstimate:
    """Return the most that these runs can take; spare nodes count, restarts do not.

    A job without its own time limit has its partition's, if that is known.
    """
    gpu_hours: list[float | None] = []
    cpu_hours: list[float | None] = []
    for job in plan.jobs:
        resources = job.resources
        gpus = count_allocated_gpus(resources)
        if resources.exclusive:  # Slurm gives such a job all GPUs of its nodes
            gpus = max(gpus, plan.cluster.gpus_per_node * resources.allocated_nodes)
        tasks = resources.allocated_nodes * resources.tasks_per_node
        cpus = 0 if gpus else tasks * resources.cpus_per_task
        hours = _max_hours_of_all_elements(plan, job, site)
        gpu_hours.append(hours * gpus if hours is not None else (None if gpus else 0.0))
        cpu_hours.append(hours * cpus if hours is not None else (None if cpus else 0.0))
    return CostEstimate(gpu_hours=_sum_if_all_known(gpu_hours), cpu_hours=_sum_if_all_known(cpu_hours))


def find_budget_problem(plan: LaunchPlan, expected: CostEstimate) -> Iterator[Finding]:
    """Yield an error if the launch may take more than `budget.gpu_hours`.

    GPUs of this machine do not count against the budget.
    """
    allowed = plan.runs[0].settings.budget.gpu_hours if plan.runs else None
    if allowed is None or plan.cluster.kind is not ClusterKind.slurm:
        return
    if expected.gpu_hours is None:
        yield build_error_finding(
            "resources.timeout_min",
            "null",
            f"without a time limit the runs cannot be checked against budget.gpu_hours, which is {allowed:g}",
            "set resources.timeout_min, or budget.gpu_hours=null",
        )
    elif expected.gpu_hours > allowed:
        yield build_error_finding(
            "budget.gpu_hours",
            f"{allowed:g}",
            f"{format_count(len(plan.runs), 'run')} may take {expected.gpu_hours:g} GPU-hours "
            f"(nodes x GPUs x time limit); budget.gpu_hours allows {allowed:g}",
            "sweep fewer points, lower resources.timeout_min, or raise budget.gpu_hours",
        )


def _max_hours_of_all_elements(plan: LaunchPlan, job: JobSpec, site: Site) -> float | None:
    """Return the hours of all elements of a job together; None without a limit."""
    limit = _max_job_duration(job)
    if limit is None and plan.cluster.kind is ClusterKind.slurm:
        limit = _longest_default_time_limit(job.resources, site)
    return None if limit is None else limit / _HOUR * job.array_element_count


def _max_job_duration(job: JobSpec) -> timedelta | None:
    """Return how long a job can take; a shared job may be queued again until all runs are done."""
    if job.shared_job is None:
        return job.resources.timeout
    return compute_shared_job_resources(replace(job.shared_job, timeout=None), len(job.runs)).timeout


def _longest_default_time_limit(resources: ResourceSpec, site: Site) -> timedelta | None:
    known = site.partitions or {}
    limits: list[timedelta] = []
    for name in list_possible_partitions(site, get_account_partition_qos(resources)):
        place = known.get(name)
        limit = None if place is None else place.default_time or place.max_time
        if limit is None:
            return None
        limits.append(limit)
    return max(limits, default=None)


def _sum_if_all_known(hours: list[float | None]) -> float | None:
    known = [hour for hour in hours if hour is not None]
    return sum(known) if len(known) == len(hours) else None
