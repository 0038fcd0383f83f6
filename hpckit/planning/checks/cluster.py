"""Whether a cluster could run a launch, according to what it reports about itself. Pure.

Compares a plan with a Site. Unknown values never count against a launch. An error is what Slurm
refuses or leaves waiting indefinitely.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta

from hpckit.model.cluster.site import Partition, Site
from hpckit.model.counted import listed
from hpckit.model.finding import Finding, Severity, error, warning
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec
from hpckit.planning.checks.limits import (
    association,
    chosen_of,
    job_qos,
    max_wall,
    partition_names,
    qos_in_order,
    submit_limits,
)
from hpckit.planning.checks.node_shape import shape_findings
from hpckit.planning.checks.sbatch_options import contradictions
from hpckit.values import replace

_SHOWN = 12


def preflight(plan: LaunchPlan, site: Site) -> tuple[Finding, ...]:
    """Return what the cluster will refuse or never start (errors), or may refuse (warnings)."""
    found = [one for job in plan.jobs for one in _job_findings(job, site)]
    return tuple(dict.fromkeys([*found, *_counts(plan, site)]))


def _job_findings(job: JobSpec, site: Site) -> Iterator[Finding]:
    resources = job.resources
    yield from contradictions(resources)
    yield from _account(resources, site)
    yield from _qos(resources, site)
    if site.partitions is not None:
        yield from _partitions(site.partitions, job, site)


def _partitions(known: Mapping[str, Partition], job: JobSpec, site: Site) -> Iterator[Finding]:
    """Yield the problems with each partition; if there are several, one that fits is enough."""
    against: list[list[Finding]] = []
    for name in filter(None, partition_names(site, chosen_of(job.resources))):
        if name in known:
            against.append(list(_against(known[name], job, site)))
            continue
        yield _unknown(error, "resources.partition", name, "there is no partition {}", known)
    fits = any(not any(one.is_error for one in each) for each in against)
    for finding in (one for each in against for one in each):
        yield replace(finding, severity=Severity.warning) if fits else finding


def _against(place: Partition, job: JobSpec, site: Site) -> Iterator[Finding]:
    resources = job.resources
    yield from _state(place)
    yield from _allowed(place, resources, site)
    yield from _time(place, resources, site)
    yield from _nodes(place, resources, site)
    groups = [node for node in site.nodes or () if node.partition == place.name]
    if groups:
        yield from shape_findings(place.name, groups, job)


def _state(place: Partition) -> Iterator[Finding]:
    if place.state in {"UP", ""}:
        return
    # DRAIN and INACTIVE refuse jobs; DOWN accepts them and lets them wait.
    say = warning if place.state == "DOWN" else error
    yield say(
        "resources.partition",
        place.name,
        f"partition {place.name} is {place.state}; only one that is UP starts jobs",
        "choose another with resources.partition=NAME, or wait until it is up",
    )


def _allowed(place: Partition, resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    """Yield warnings only: newer releases also admit the accounts below an allowed one."""
    chosen = chosen_of(resources)
    account = chosen.account or site.default_account
    qos = job_qos(site, chosen, place.name) if chosen.qos or site.associations else None
    yield from _closed_to(place, "account", account, place.allowed_accounts, place.denied_accounts)
    yield from _closed_to(place, "qos", qos, place.allowed_qos, place.denied_qos)


def _closed_to(
    place: Partition,
    word: str,
    value: str | None,
    only: frozenset[str] | None,
    never: frozenset[str],
) -> Iterator[Finding]:
    if value is None or (value not in never if only is None else value in only):
        return
    takes = f"all but {_list(never)}" if only is None else f"only {_list(only)}"
    yield warning(
        f"resources.{word}",
        value,
        f"partition {place.name} may not take {word} {value}; it takes {takes}",
        f"set resources.{word}, or choose another partition with resources.partition=NAME",
    )


def _account(resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    mine = site.associations
    # Every kind of enforcement implies that a job needs an account that there is.
    if resources.account is None or mine is None or not _words(site) - {"none"}:
        return
    accounts = dict.fromkeys(one.account for one in mine)
    if chosen_of(resources).account in accounts:
        return
    said = "you have no account {} here"
    yield _unknown(error, "resources.account", resources.account, said, accounts, "yours")


def _qos(resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    name = chosen_of(resources).qos
    if name is None or site.qos is None:
        return
    say = error if "qos" in _words(site) else warning
    if name not in site.qos:
        yield _unknown(say, "resources.qos", name, "there is no QOS {}", site.qos)
        return
    for partition in partition_names(site, chosen_of(resources)):
        mine = association(site, chosen_of(resources), partition)
        if mine is not None and mine.qos and name not in mine.qos:
            yield say(
                "resources.qos",
                name,
                f"account {mine.account} may not use QOS {name}; it may use {_list(mine.qos)}",
                "set resources.qos to one of them, or resources.account to an account that may",
            )
            return


def _time(place: Partition, resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    wanted = resources.timeout
    if wanted is None:
        return
    chosen = chosen_of(resources)
    limits = [max_wall(site, chosen, place.name)]
    if place.max_time is not None and "partitiontimelimit" not in _flags(place, resources, site):
        limits.insert(0, (place.max_time, f"partition {place.name}"))
    for limit, whose in filter(None, limits):
        if wanted > limit:
            yield error(
                "resources.timeout_min",
                _minutes(wanted),
                f"resources.timeout_min is {_minutes(wanted)}; {whose} allows {_minutes(limit)}",
                f"set resources.timeout_min={_minutes(limit)} or less (a requeued run continues "
                "from its last save), or choose another partition or QOS; if runs share a "
                "job (sweep.runs_per_job) and follow each other in it, sweep.job_timeout_min",
            )


def _nodes(place: Partition, resources: ResourceSpec, site: Site) -> Iterator[Finding]:
    wanted, most = resources.allocated_nodes, place.nodes
    if most is None:
        return
    if place.max_nodes and "partitionmaxnodes" not in _flags(place, resources, site):
        most = min(most, place.max_nodes)
    if wanted <= most:
        return
    has = f"has {place.nodes}" if most == place.nodes else f"gives a job {most} at most"
    yield error(
        "resources.nodes",
        resources.nodes,
        f"a run asks for {wanted} nodes (spare ones included); partition {place.name} {has}",
        "lower resources.nodes or resources.spare_nodes, or choose another partition",
    )


def _flags(place: Partition, resources: ResourceSpec, site: Site) -> set[str]:
    """Return the flags of the QOS whose limits count: some lift a limit of the partition."""
    each = qos_in_order(site, chosen_of(resources), place.name)
    return {flag for qos in each for flag in qos.flags}


def _counts(plan: LaunchPlan, site: Site) -> Iterator[Finding]:
    for job in plan.jobs:
        limits = submit_limits(site, chosen_of(job.resources))
        none_at_all = limits.queued == 0 or limits.jobs == 0
        if none_at_all or (job.is_array and limits.array == 0):
            what = "any job" if none_at_all else "job arrays"
            yield error(
                "resources.qos",
                job.resources.qos or "null",
                f"this cluster does not take {what} from you: its limit is 0",
                "choose another account, QOS or partition, or launch the points one by one",
            )


def _words(site: Site) -> frozenset[str]:
    words = frozenset[str]() if site.settings is None else site.settings.enforced
    return words | {"qos"} if "all" in words else words


def _minutes(time: timedelta) -> str:
    return f"{time / timedelta(minutes=1):g}"


def _list(names: Collection[str]) -> str:
    return listed(sorted(names), _SHOWN) or "none"


def _unknown(
    say: Callable[[str, object, str, str], Finding],
    key: str,
    name: str,
    said: str,
    known: Collection[str],
    which: str = "there",
) -> Finding:
    """Say that there is nothing of a name, what there is, and what may be meant."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {key}={near[0]}?" if near else f"choose one of them with {key}=NAME"
    return say(key, name, f"{said.format(repr(name))}; {which} are {_list(known)}", hint)
