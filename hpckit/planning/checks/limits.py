"""Which of a cluster's limits apply to a job, and what becomes of it if it is preempted. Pure.

Limits combine association, QOS and partition by the precedence of "Hierarchy of limits" in
Slurm's resource_limits.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from hpckit.model.cluster.preemption import (
    BY_QOS,
    Preemption,
    PreemptMode,
    resolve_job_preemption,
    slurm_restarts_preempted_job,
)
from hpckit.model.cluster.site import Association, Partition, Qos, Site, SubmitLimits
from hpckit.model.finding import Finding, build_warning_finding
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec
from hpckit.values import dataclass

NORMAL = "normal"
"""The QOS of a job if none was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The account, partition and QOS that a job requests. Null means the cluster's default."""

    account: str | None
    partition: str | None
    qos: str | None

    @classmethod
    def lower_case_account_and_qos(
        cls, account: str | None, partition: str | None, qos: str | None
    ) -> Chosen:
        """Return this as Slurm sees it: accounts and QOS are converted to lower case."""
        return cls(account=account and account.lower(), partition=partition, qos=qos and qos.lower())


def get_account_partition_qos(resources: ResourceSpec) -> Chosen:
    """Return the account, partition and QOS that a job requests."""
    return Chosen.lower_case_account_and_qos(resources.account, resources.partition, resources.qos)


def find_submit_limits(site: Site, chosen: Chosen) -> SubmitLimits:
    """Return how many jobs may be submitted, as far as it is known.

    Slurm may choose any of several partitions (`a,b`), so the lowest limit counts.
    """
    settings = site.settings
    if settings is None:
        return SubmitLimits()
    queued = None
    if are_limits_enforced(site):
        each = (_find_queued_job_limit(site, chosen, name) for name in list_possible_partitions(site, chosen))
        queued = _lowest_known_limit(each)
    return SubmitLimits(
        array_index=settings.array_index, array_tasks=settings.array_tasks, queued=queued, jobs=settings.jobs
    )


def are_limits_enforced(site: Site) -> bool:
    """Return whether the limits of associations and QOS are enforced, not only configured.

    `safe` implies them, and `all` means every kind of enforcement.
    """
    enforced = frozenset[str]() if site.settings is None else site.settings.enforced
    return not enforced.isdisjoint({"limits", "safe", "all"})


def list_possible_partitions(site: Site, chosen: Chosen) -> tuple[str, ...]:
    """Return the partitions the job may start in; an empty name if the default is not known."""
    if chosen.partition is not None:
        return tuple(chosen.partition.split(","))
    known = (site.partitions or {}).values()
    return tuple(partition.name for partition in known if partition.default) or ("",)


def find_association(site: Site, chosen: Chosen, partition: str) -> Association | None:
    """Return the association that a job counts for; one for its partition takes precedence."""
    account = chosen.account or site.default_account
    mine = [association for association in site.associations or () if association.account == account]
    for name in (partition, ""):
        for one in mine:
            if one.partition == name:
                return one
    return None


def find_job_qos(site: Site, chosen: Chosen, partition: str) -> str:
    """Return the QOS of a job: the requested one, the association's default, or its only one."""
    if chosen.qos is not None:
        return chosen.qos
    mine = find_association(site, chosen, partition)
    if mine is None:
        return NORMAL
    only = mine.qos[0] if len(mine.qos) == 1 else NORMAL
    return mine.default_qos or only


def list_qos_by_precedence(site: Site, chosen: Chosen, partition: str) -> tuple[Qos, ...]:
    """Return the QOS whose limits count, in order of precedence.

    The partition's comes first, unless the job's has the flag OverPartQOS.
    """
    known = site.qos or {}
    names = [find_job_qos(site, chosen, partition)]
    place: Partition | None = (site.partitions or {}).get(partition)
    if place is not None and place.qos is not None and place.qos not in names:
        names.insert(0, place.qos)
    found = [known[name] for name in names if name in known]
    if "overpartqos" in found[-1].flags if found else False:
        found.reverse()
    return tuple(found)


def find_allowed_time_limit(site: Site, chosen: Chosen, partition: str) -> tuple[timedelta, str] | None:
    """Return the longest time limit that QOS or association allow, and which of them sets it."""
    if not are_limits_enforced(site):
        return None
    for qos in list_qos_by_precedence(site, chosen, partition):
        if qos.max_wall is not None:
            return qos.max_wall, f"QOS {qos.name}"
    mine = find_association(site, chosen, partition)
    if mine is None or mine.max_wall is None:
        return None
    return mine.max_wall, f"account {mine.account}"


def _find_queued_job_limit(site: Site, chosen: Chosen, partition: str) -> int | None:
    """Return the lowest of the limits for one user, one account, and all together."""
    qos = list_qos_by_precedence(site, chosen, partition)
    mine = find_association(site, chosen, partition)
    by_user = _first_set_qos_limit(qos, lambda one: one.user_submit)
    by_account = _first_set_qos_limit(qos, lambda one: one.account_submit)
    group = _first_set_qos_limit(qos, lambda one: one.group_submit)
    own = None
    if mine is not None and by_user is None and by_account is None:
        own = mine.max_submit
    above = _list_account_group_limits(site, mine) if mine is not None and group is None else ()
    return _lowest_known_limit((by_user, by_account, group, own, *above))


def _list_account_group_limits(site: Site, mine: Association) -> Iterator[int | None]:
    accounts, name = site.accounts or {}, mine.account
    seen: set[str] = set()
    while name in accounts and name not in seen:
        seen.add(name)
        yield accounts[name].group_submit
        name = accounts[name].parent


def _first_set_qos_limit(qos: Iterable[Qos], limit: Callable[[Qos], int | None]) -> int | None:
    return next((found for rule in qos if (found := limit(rule)) is not None), None)


def _lowest_known_limit(limits: Iterable[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def describe_preemption(plan: LaunchPlan, site: Site) -> tuple[str, ...]:
    """Return one line for each partition or QOS whose jobs are preempted, or may be."""
    lines = (
        f"{name}: {_format_preemption(found)}: {_describe_preempted_restart(job, found)}"
        for job, name, found in _list_preemption_of_jobs(plan, site)
        if found.mode is not PreemptMode.off
    )
    return tuple(dict.fromkeys(lines))


def warn_about_short_preemption_grace(plan: LaunchPlan, site: Site) -> Iterator[Finding]:
    """Yield a warning where a preemption leaves less time than ranks are given to save."""
    wait = None if site.settings is None else site.settings.kill_wait
    wished = max(run.settings.runtime.notice_grace_s for run in plan.runs_to_check)
    for name, found in {name: found for _, name, found in _list_preemption_of_jobs(plan, site)}.items():
        ends = found.mode in {PreemptMode.cancel, PreemptMode.requeue}
        if not ends or found.grace is None or wait is None:
            continue
        left_s = (found.grace + wait).total_seconds()
        if left_s < wished:
            yield build_warning_finding(
                "runtime.notice_grace_s",
                wished,
                f"{name}: a preempted job is killed {left_s:g} s after its notice, and ranks are "
                f"given {wished:g} s to save",
                "save often (checkpoint.interval_min): the work since the last save may be lost",
            )


def _list_preemption_of_jobs(plan: LaunchPlan, site: Site) -> Iterator[tuple[JobSpec, str, Preemption]]:
    """Yield each job with each partition it may start in, or its QOS, and its preemption there."""
    settings = site.settings
    if settings is None or not settings.preempt_type:
        return
    for job in plan.jobs:
        chosen = get_account_partition_qos(job.resources)
        for partition in list_possible_partitions(site, chosen):
            qos, place = (find_job_qos(site, chosen, partition), (site.partitions or {}).get(partition))
            by_qos = settings.preempt_type == BY_QOS
            found = resolve_job_preemption(
                settings.preempt_type,
                settings.preempt_mode,
                None if place is None else place.preemption,
                (site.qos_preemption or {}).get(qos),
            )
            yield job, f"QOS {qos}" if by_qos else f"partition {partition}", found


def _format_preemption(found: Preemption) -> str:
    if found.mode is PreemptMode.unknown:
        return "how jobs are preempted is not known"
    grace = found.grace or timedelta()
    known = "" if found.grace is None else f", GraceTime={grace.total_seconds():g}"
    return f"PreemptMode={found.mode}{known}"


def _describe_preempted_restart(job: JobSpec, found: Preemption) -> str:
    if found.mode is PreemptMode.suspend:
        return "a preempted run is suspended, and continues by itself"
    if not job.requeue:
        return "a preempted run is not started again (recovery.requeue is off)"
    slurm = slurm_restarts_preempted_job(found.mode, requeueable=True)
    return "Slurm requeues a preempted run" if slurm else "hpckit requeues a preempted run itself"
