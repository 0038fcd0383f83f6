"""Whether a cluster could run a launch, according to what it reports about itself. Pure.

Compares a plan with a Site. Unknown values never count against a launch. An error is what Slurm
refuses or leaves waiting indefinitely.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta

from hpckit.model.cluster.site import Partition, Site
from hpckit.model.counted import format_short_list
from hpckit.model.finding import Finding, Severity, build_error_finding, build_warning_finding
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec
from hpckit.planning.checks.limits import (
    find_allowed_time_limit,
    find_association,
    find_job_qos,
    find_submit_limits,
    get_account_partition_qos,
    list_possible_partitions,
    list_qos_by_precedence,
)
from hpckit.planning.checks.node_shape import find_node_resource_problems
from hpckit.planning.checks.sbatch_options import find_option_conflicts
from hpckit.values import replace

_SHOWN = 12
_SEVERAL_QOS = "24.11"
"""The first release that takes a list of QOS."""


def find_cluster_problems(plan: LaunchPlan, site: Site) -> tuple[Finding, ...]:
    """Return what the cluster will refuse or never start (errors), or may refuse (warnings)."""
    found = [problem for job in plan.jobs for problem in _find_job_problems(job, site)]
    return tuple(dict.fromkeys([*found, *_find_zero_job_limits(plan, site)]))


def _find_job_problems(job: JobSpec, site: Site) -> Iterator[Finding]:
    resources = job.resources
    yield from find_option_conflicts(resources)
    yield from _find_account_problem(resources, site)
    yield from _find_qos_problem(resources, site)
    if site.partitions is not None:
        yield from _find_partition_problems(site.partitions, job, site)


def _find_partition_problems(known: Mapping[str, Partition], job: JobSpec, site: Site) -> Iterator[Finding]:
    """Yield the problems with each partition; if there are several, one that fits is enough."""
    against: list[list[Finding]] = []
    for name in filter(None, list_possible_partitions(site, get_account_partition_qos(job.resources))):
        if name in known:
            against.append(list(_find_problems_in_partition(known[name], job, site)))
            continue
        yield _build_unknown_name_finding(
            build_error_finding, "resources.partition", name, "there is no partition {}", known
        )
    fits = any(not any(one.is_error for one in each) for each in against)
    for finding in (one for each in against for one in each):
        yield replace(finding, severity=Severity.warning) if fits else finding


def _find_problems_in_partition(place: Partition, job: JobSpec, site: Site) -> Iterator[Finding]:
    resources = job.resources
    yield from _find_partition_state_problem(place)
    yield from _warn_of_denied_account_or_qos(place, resources, site)
    yield from _find_time_limit_problem(place, resources, site)
    yield from _find_node_count_problem(place, resources, site)
    groups = [node for node in site.nodes or () if node.partition == place.name]
    if groups:
        yield from find_node_resource_problems(place.name, groups, job)


def _find_partition_state_problem(place: Partition) -> Iterator[Finding]:
    if place.state in {"UP", ""}:
        return
    # DRAIN and INACTIVE refuse jobs; DOWN accepts them and lets them wait.
    say = build_warning_finding if place.state == "DOWN" else build_error_finding
    yield say(
        "resources.partition",
        place.name,
        f"partition {place.name} is {place.state}; only partitions that are UP start jobs",
        "choose another with resources.partition=NAME, or wait until it is up",
    )


def _warn_of_denied_account_or_qos(
    place: Partition, resources: ResourceSpec, site: Site
) -> Iterator[Finding]:
    """Yield warnings only: newer releases also admit the accounts below an allowed one."""
    chosen = get_account_partition_qos(resources)
    account = chosen.account or site.default_account
    qos = find_job_qos(site, chosen, place.name) if chosen.qos or site.associations else None
    qos = None if qos and "," in qos else qos  # Slurm takes the one that the partition allows
    yield from _warn_if_partition_denies(
        place, "account", account, place.allowed_accounts, place.denied_accounts
    )
    yield from _warn_if_partition_denies(place, "qos", qos, place.allowed_qos, place.denied_qos)


def _warn_if_partition_denies(
    place: Partition, word: str, value: str | None, only: frozenset[str] | None, never: frozenset[str]
) -> Iterator[Finding]:
    if value is None or (value not in never if only is None else value in only):
        return
    takes = f"all but {_format_name_list(never)}" if only is None else f"only {_format_name_list(only)}"
    yield build_warning_finding(
        f"resources.{word}",
        value,
        f"partition {place.name} may not take {word} {value}; it takes {takes}",
        f"set resources.{word}, or choose another partition with resources.partition=NAME",
    )


def _find_account_problem(resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    mine = site.associations
    # Every kind of enforcement implies that a job needs an account that there is.
    if resources.account is None or mine is None or not _list_enforced_limits(site) - {"none"}:
        return
    accounts = dict.fromkeys(one.account for one in mine)
    if get_account_partition_qos(resources).account in accounts:
        return
    said = "you have no account {} here"
    yield _build_unknown_name_finding(
        build_error_finding, "resources.account", resources.account, said, accounts, "yours"
    )


def _find_qos_problem(resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    names = get_account_partition_qos(resources).qos
    release = "" if site.settings is None else site.settings.release
    if names and "," in names and "" < release < _SEVERAL_QOS:  # releases have four digits: 22.05, 24.11
        yield build_error_finding(
            "resources.qos",
            names,
            f"resources.qos names several, {names}; Slurm {release} takes one, from {_SEVERAL_QOS} on it "
            "takes a list",
            "choose one of them",
        )
        return
    for name in names.split(",") if names else ():
        yield from _find_problem_of_one_qos(name, resources, site)


def _find_problem_of_one_qos(name: str, resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    if site.qos is None:
        return
    say = build_error_finding if "qos" in _list_enforced_limits(site) else build_warning_finding
    if name not in site.qos:
        yield _build_unknown_name_finding(say, "resources.qos", name, "there is no QOS {}", site.qos)
        return
    for partition in list_possible_partitions(site, get_account_partition_qos(resources)):
        mine = find_association(site, get_account_partition_qos(resources), partition)
        if mine is not None and mine.qos and name not in mine.qos:
            yield say(
                "resources.qos",
                name,
                f"account {mine.account} may not use QOS {name}; it may use {_format_name_list(mine.qos)}",
                "set resources.qos to one of them, or resources.account to an account that may",
            )
            return


def _find_time_limit_problem(place: Partition, resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    wanted = resources.timeout
    if wanted is None:
        return
    for limit, whose in list_time_limits(place, resources, site):
        if wanted > limit:
            yield build_error_finding(
                "resources.timeout_min",
                _format_minutes(wanted),
                f"resources.timeout_min is {_format_minutes(wanted)}; {whose} allows "
                f"{_format_minutes(limit)}",
                f"set resources.timeout_min={_format_minutes(limit)} or less (a requeued run "
                "continues from its last save), or choose another partition or QOS; if runs share "
                "a job (sweep.runs_per_job) and follow each other in it, sweep.job_timeout_min",
            )


def list_time_limits(
    place: Partition, resources: ResourceSpec, site: Site
) -> tuple[tuple[timedelta, str], ...]:
    """Return the longest time limits that a job may have in a partition, and what sets each."""
    limits = [find_allowed_time_limit(site, get_account_partition_qos(resources), place.name)]
    if place.max_time is not None and "partitiontimelimit" not in _list_qos_flags(place, resources, site):
        limits.insert(0, (place.max_time, f"partition {place.name}"))
    return tuple(filter(None, limits))


def _find_node_count_problem(place: Partition, resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    wanted, most = resources.allocated_nodes, place.nodes
    if most is None:
        return
    if place.max_nodes and "partitionmaxnodes" not in _list_qos_flags(place, resources, site):
        most = min(most, place.max_nodes)
    if wanted <= most:
        return
    has = f"has {place.nodes}" if most == place.nodes else f"gives a job {most} at most"
    yield build_error_finding(
        "resources.nodes",
        resources.nodes,
        f"a run asks for {wanted} nodes (spare ones included); partition {place.name} {has}",
        "lower resources.nodes or resources.spare_nodes, or choose another partition",
    )


def _list_qos_flags(place: Partition, resources: ResourceSpec, site: Site) -> set[str]:
    """Return the flags of the QOS whose limits count: some lift a limit of the partition."""
    each = list_qos_by_precedence(site, get_account_partition_qos(resources), place.name)
    return {flag for qos in each for flag in qos.flags}


def _find_zero_job_limits(plan: LaunchPlan, site: Site) -> Iterator[Finding]:
    for job in plan.jobs:
        limits = find_submit_limits(site, get_account_partition_qos(job.resources))
        none_at_all = limits.queued == 0 or limits.jobs == 0
        if none_at_all or (job.is_array and limits.max_array_elements == 0):
            what = "any job" if none_at_all else "job arrays"
            yield build_error_finding(
                "resources.qos",
                job.resources.qos or "null",
                f"this cluster does not take {what} from you: its limit is 0",
                "choose another account, QOS or partition, or launch the points one by one",
            )


def _list_enforced_limits(site: Site) -> frozenset[str]:
    words = frozenset[str]() if site.settings is None else site.settings.enforced
    return words | {"qos"} if "all" in words else words


def _format_minutes(time: timedelta) -> str:
    return f"{time / timedelta(minutes=1):g}"


def _format_name_list(names: Collection[str]) -> str:
    return format_short_list(sorted(names), _SHOWN) or "none"


def _build_unknown_name_finding(
    say: Callable[[str, object, str, str], Finding],
    key: str,
    name: str,
    said: str,
    known: Collection[str],
    which: str = "there",
) -> Finding:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {key}={near[0]}?" if near else f"choose one of them with {key}=NAME"
    return say(key, name, f"{said.format(repr(name))}; {which} are {_format_name_list(known)}", hint)
