"""What a cluster reports about itself: partitions, nodes, accounts and QOS. None means unknown.

Names are Slurm's. Which of the limits apply to a job is decided in planning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from hpckit.model.cluster.preemption import Preemption, PreemptMode
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field

_AWAY = ("down", "drain", "fail", "maint", "reserved", "unk", "power", "boot", "*", "future", "inval")
"""Parts of the names of node states in which Slurm forecasts no start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """The configuration of slurmctld that concerns the jobs of all users.

    `enforced` holds the words of AccountingStorageEnforce: without `limits` among them, the limits
    of accounts and QOS are configured but not enforced. `array_index`, `array_tasks` and `jobs` are
    as in SubmitLimits. `accounting` is whether there is an accounting database.
    """

    cluster: str = ""
    release: str = ""
    enforced: frozenset[str] = frozenset()
    accounting: bool = False
    preempt_type: str = ""
    preempt_mode: PreemptMode = PreemptMode.unknown
    kill_wait: timedelta | None = None
    array_index: int | None = None
    array_tasks: int | None = None
    jobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition. `allowed_*` null means all; `max_nodes` and `max_time` null mean no limit."""

    name: str
    default: bool = False
    state: str = "UP"
    nodes: int | None = None
    max_nodes: int | None = None
    max_time: timedelta | None = None
    default_time: timedelta | None = None
    qos: str | None = None
    allowed_accounts: frozenset[str] | None = None
    denied_accounts: frozenset[str] = frozenset()
    allowed_qos: frozenset[str] | None = None
    denied_qos: frozenset[str] = frozenset()
    preemption: Preemption = field(default_factory=Preemption)
    allowed_groups: frozenset[str] | None = None
    hidden: bool = False
    root_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes of a partition with the same hardware and state: how many, and what each of them has.

    `gres` counts by name, such as `gpu` (all GPUs) and `gpu:a100` (those of one type).
    """

    partition: str
    nodes: int
    cpus: int
    memory_mb: int
    gres: Mapping[str, int]
    state: str = "idle"

    @property
    def accepts_jobs(self) -> bool:
        """Whether a job may be placed there, now or when other jobs have ended."""
        return not any(word in self.state.lower() for word in _AWAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One node of a partition, with what it `has`; `default` is whether that is the default one."""

    name: str
    has: NodeGroup
    features: frozenset[str] = frozenset()
    default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """A user's membership in an account. The limits include those inherited from the account.

    `partition` is empty if the association applies to all partitions that have none themselves.
    """

    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    max_submit: int | None = None
    max_wall: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account: `group_submit` counts for all its users and those of its children together."""

    name: str
    parent: str = ""
    group_submit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service: its limits for one user, for one account, and for all together."""

    name: str
    flags: frozenset[str] = frozenset()
    group_submit: int | None = None
    user_submit: int | None = None
    account_submit: int | None = None
    max_wall: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """All that is known of a cluster for one user; `unknown` lists what is not known, and why.

    A field is null if nothing answered; an empty mapping is an answer.
    """

    settings: SiteSettings | None = None
    partitions: Mapping[str, Partition] | None = None
    nodes: tuple[NodeGroup, ...] | None = None
    default_account: str | None = None
    associations: tuple[Association, ...] | None = None
    accounts: Mapping[str, Account] | None = None
    qos: Mapping[str, Qos] | None = None
    qos_preemption: Mapping[str, Preemption] | None = None
    unknown: tuple[str, ...] = ()


_ITEM = lazy_pattern(r"([A-Za-z][\w.-]*)(?::([A-Za-z_][\w.-]*|\d+[A-Za-z_][\w.-]*))?(?:[:=](\d+))?")
_NOTHING = frozenset({"", "(null)", "none", "n/a"})


def parse_gres(text: str) -> dict[str, int]:
    """Return the count of each resource: `gpu:a100:4(S:0-1),gpu:v100:2` has 6 `gpu`."""
    found: dict[str, int] = {}
    if text.strip().lower() in _NOTHING:
        return found
    for word in re.sub(r"\([^)]*\)", "", text).split(","):
        match = _ITEM.match(word.strip().removeprefix("gres/").removeprefix("gres:"))
        if match is None:
            continue
        name, kind, count = match[1], match[2], int(match[3] or 1)
        for key in (name, f"{name}:{kind}") if kind else (name,):
            found[key] = found.get(key, 0) + count
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitLimits:
    """How many jobs a user may submit; null means no limit, or unknown.

    Every element of an array is one job, as in Slurm.

    `array_index` is the largest index plus one (MaxArraySize). `array_tasks` is how many elements
    one array may have (SchedulerParameters max_array_tasks). `queued` is how many jobs of the user
    may be pending or running at a time (MaxSubmitJobs of association and QOS). `jobs` is how many
    jobs of all users the controller holds (MaxJobCount).
    """

    array_index: int | None = None
    array_tasks: int | None = None
    queued: int | None = None
    jobs: int | None = None

    @property
    def max_array_elements(self) -> int | None:
        """How many elements one array may have; 0 if arrays are not possible."""
        known = [limit for limit in (self.array_index, self.array_tasks) if limit is not None]
        return min(known, default=None)


NO_LIMITS = SubmitLimits()
