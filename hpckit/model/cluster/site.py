"""What a cluster says of itself: partitions, nodes, accounts and QOS. None means: not known.

Responsible for these terms, named as Slurm names them; it must not know how they are asked for,
nor what of them applies to a job (planning).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

_AWAY = ("down", "drain", "fail", "maint", "reserved", "unk", "power", "boot", "*", "future")
"""Parts of the states of nodes on which Slurm forecasts no start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """What slurmctld is configured to do, of all users' jobs.

    `enforced` are the words of AccountingStorageEnforce: without `limits` those of accounts and
    QOS are written down and not kept. `array_index`, `array_tasks` and `jobs` are as in
    SubmitLimits. `accounting` is whether there is a database to ask.
    """

    cluster: str = ""
    enforced: frozenset[str] = frozenset()
    accounting: bool = False
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """The nodes of a partition that are alike: how many, and what each of them has.

    `gres` counts by name, such as `gpu` (all of them) and `gpu:a100` (those of a type).
    """

    partition: str
    nodes: int
    cpus: int
    memory_mb: int
    gres: Mapping[str, int]
    state: str = "idle"

    @property
    def usable(self) -> bool:
        """Whether a job may be put there now or once others have ended."""
        return not any(word in self.state.lower() for word in _AWAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """A user's place in an account. Slurm has put what an account passes on into the limits.

    `partition` is empty where it holds for all that have none of their own.
    """

    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    max_submit: int | None = None
    max_wall: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account: `group_submit` is for all of its users, and its children's, together."""

    name: str
    parent: str = ""
    group_submit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service, with its limits for one user, one account and all together."""

    name: str
    flags: frozenset[str] = frozenset()
    group_submit: int | None = None
    user_submit: int | None = None
    account_submit: int | None = None
    max_wall: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """All that could be learnt of a cluster for one user; `unknown` says what could not, and why.

    Fields are null where nobody answered; an empty mapping is an answer.
    """

    settings: SiteSettings | None = None
    partitions: Mapping[str, Partition] | None = None
    nodes: tuple[NodeGroup, ...] | None = None
    default_account: str | None = None
    associations: tuple[Association, ...] | None = None
    accounts: Mapping[str, Account] | None = None
    qos: Mapping[str, Qos] | None = None
    unknown: tuple[str, ...] = ()
