"""How much more of what ran out the next attempt of a run asks Slurm for. Pure.

A growth is bounded by what was asked for at first (`recovery.grow_max`) and by what the cluster has. Whether
there is a next attempt at all is for the budgets (planning.recovery.decide, planning.recovery.budget).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from hpckit.model.cluster.site import Site
from hpckit.model.events import SettingsChanged
from hpckit.model.failure import Cause
from hpckit.model.launch import LaunchConfig, Recovery, Resources
from hpckit.model.plan import ResourceSpec
from hpckit.planning.checks.cluster import list_time_limits
from hpckit.planning.checks.limits import get_account_partition_qos, list_possible_partitions
from hpckit.planning.checks.node_shape import job_fits_node
from hpckit.values import replace

GROWING = {Cause.host_oom: "mem_gb", Cause.time_limit: "timeout_min"}
"""Which key of `resources` grows after a cause."""
_FACTORS = {Cause.host_oom: "grow_on_oom", Cause.time_limit: "grow_on_timeout"}
"""And by which key of `recovery`."""

_MB_PER_GB = 1024
_MINUTE = timedelta(minutes=1)
_UNITS = {Cause.host_oom: 100, Cause.time_limit: 1}
"""How finely it grows: by hundredths of a GB, and whole minutes."""

Room = Mapping[Cause, tuple[float, str]]
"""How much a job may ask for of what ran out, after which cause, and what sets that; in GB, in minutes."""


def list_causes_of_growth(policy: Recovery) -> tuple[Cause, ...]:
    """Return the causes after which the policy asks for more."""
    return tuple(cause for cause, factor in _FACTORS.items() if getattr(policy, factor) is not None)


def is_key_set(key: str, words: Iterable[str]) -> bool:
    """Whether these overrides say what this key of `resources` is to be."""
    return any(word.partition("=")[0].lstrip("+") == f"resources.{key}" for word in words)


def grow_resources(
    cause: Cause, present: LaunchConfig, first: Resources, changes: Iterable[SettingsChanged], room: Room
) -> LaunchConfig | str:
    """Return the settings that ask for more after this cause, or why they cannot.

    `present` are the settings of the run, `first` the resources that its launch froze, `changes` what resumes
    and growths made of them: what the user asked for in a resume counts instead of the frozen value. `room`
    is what the cluster has for such a job.
    """
    key, factor = GROWING[cause], getattr(present.recovery, _FACTORS[cause])
    now = getattr(present.resources, key)
    base = getattr(first, key)
    for change in changes:
        if change.cause is None and is_key_set(key, change.words):
            base = getattr(change.resources, key)
    bound = f"recovery.grow_max={present.recovery.grow_max:g}"
    most, whose = min((base * present.recovery.grow_max, bound), room[cause])
    unit = _UNITS[cause]
    count = min(math.ceil(round(now * factor * unit, 3)), math.floor(round(most * unit, 3)))
    wanted: dict[str, Any] = {key: count if unit == 1 else count / unit}
    if wanted[key] <= now:
        return f"resources.{key}={now:g} is all that {whose} allows"
    return replace(present, resources=replace(present.resources, **wanted))


def find_room_to_grow(asked: ResourceSpec, site: Site) -> Room:
    """Return what a cluster has for a job; what is not known sets no bound.

    Slurm may choose any of several partitions, so the largest counts.
    """
    memory, time = list[tuple[float, str]](), list[tuple[float, str]]()
    for name in list_possible_partitions(site, get_account_partition_qos(asked)):
        sizes = sorted(_list_node_memory(replace(asked, mem_gb=None), name, site), reverse=True)
        enough = sizes[asked.allocated_nodes - 1 :]
        memory.append((enough[0] if enough else math.inf, f"partition {name}"))
        place = (site.partitions or {}).get(name)
        limits = () if place is None else list_time_limits(place, asked, site)
        time.append(min(((limit / _MINUTE, whose) for limit, whose in limits), default=(math.inf, "")))
    return {Cause.host_oom: max(memory), Cause.time_limit: max(time)}


def _list_node_memory(asked: ResourceSpec, partition: str, site: Site) -> Iterator[float]:
    for group in site.nodes or ():
        if group.partition == partition and group.accepts_jobs and job_fits_node(asked, group):
            known = group.memory_mb > 1  # what Slurm shows where no memory is configured
            yield from [group.memory_mb / _MB_PER_GB if known else math.inf] * group.nodes
