"""What Slurm says of itself for the file of a cluster, in at most six questions.

It asks and puts together; `document` says what it means. What nothing answered stays unknown.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from hpckit.errors import SchedulerError
from hpckit.model.cluster.preemption import BY_QOS, NO_PREEMPTION, Preemption, resolve_job_preemption
from hpckit.model.cluster.site import NodeGroup, Partition, Site
from hpckit.patterns import lazy_pattern
from hpckit.planning.checks.gpu_types import count_gpus_by_type
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import parse_scontrol_settings, split_rows
from hpckit.slurm.site_parse import SINFO_FORMAT, parse_node_groups
from hpckit.slurm.site_query import CONFIG, Heard, ask_cluster_facts_for_user
from hpckit.values import dataclass, field, replace

_KINDS = f"{SINFO_FORMAT}|%f|%d|%z|%N"
"""What hpckit knows of nodes, then features, local disk in MB, sockets:cores:threads, and names."""

KINDS = ("sinfo", "--local", "--all", "--exact", "--noheader", f"--format={_KINDS}")
"""`--local`: not the nodes of a federation's other clusters."""

_ROOT = "root"
"""The account above all others: only Slurm's own administrator has it."""

_NAME = lazy_pattern(r"[^\s$#{}\[\]'\"]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes of a partition with the same hardware: `nodes` of them, by their `names`.

    `memory_mb` is what the node has: a site may keep some of it (MemSpecLimit), which sinfo does not tell.
    """

    partition: str
    nodes: int
    cpus: int
    memory_mb: int
    gres: Mapping[str, int]
    features: tuple[str, ...] = ()
    disk_mb: int = 0
    cores: str = ""
    names: str = ""

    @property
    def gpu_types(self) -> dict[str, int]:
        """GPUs of a node by type; those without one as `gpu`."""
        return count_gpus_by_type(self.gres)

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return sum(self.gpu_types.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """What is known of a cluster at a moment; `settings` are those of `scontrol show config`.

    `closed` are partitions that this user's jobs cannot use, with the reason.
    """

    at: datetime
    site: Site = field(default_factory=Site)
    settings: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[NodeKind, ...] | None = None
    closed: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @property
    def open_partitions(self) -> tuple[Partition, ...]:
        """The partitions that this user's jobs may use."""
        return tuple(one for name, one in (self.site.partitions or {}).items() if name not in self.closed)

    @property
    def open_kinds(self) -> tuple[NodeKind, ...]:
        """The kinds of nodes of those partitions."""
        return tuple(kind for kind in self.kinds or () if kind.partition not in self.closed)

    @property
    def accounts(self) -> tuple[str, ...]:
        """The user's accounts."""
        names = dict.fromkeys(one.account for one in self.site.associations or ())
        return tuple(name for name in names if name != _ROOT) or tuple(names)

    @property
    def default_partition(self) -> str | None:
        """Slurm's default, or the only one; None if the user has to choose."""
        usable = self.open_partitions
        names = [one.name for one in usable if one.default] or [one.name for one in usable]
        return names[0] if len(names) == 1 else None

    def without_user(self) -> SiteFacts:
        """Return what is the same for every user: no accounts, and no groups."""
        there = {
            name: replace(one, allowed_accounts=None, denied_accounts=frozenset(), allowed_groups=None)
            for name, one in (self.site.partitions or {}).items()
        }
        site = replace(self.site, associations=None, accounts=None, default_account=None)
        site = replace(site, partitions=None if self.site.partitions is None else there)
        bare = replace(self, site=site)
        return replace(bare, closed=find_closed_partitions(bare, ()))

    def list_preemption(self) -> dict[str, Preemption]:
        """Return how jobs are preempted by `partition NAME` or `QOS NAME`; empty if it is not known."""
        settings = self.site.settings
        if settings is None or not settings.preempt_type:
            return {}
        plugin, mode = settings.preempt_type, settings.preempt_mode
        if plugin == BY_QOS:
            mine = {name for one in self.site.associations or () for name in one.qos}
            there = self.site.qos_preemption or {}
            return {
                f"QOS {name}": resolve_job_preemption(plugin, mode, None, own)
                for name, own in there.items()
                if name in mine or not mine
            }
        return {
            f"partition {one.name}": resolve_job_preemption(plugin, mode, one.preemption, None)
            for one in (self.open_partitions if plugin != NO_PREEMPTION else ())
        }


def ask_site_facts(commands: SlurmCommands, user: str, now: datetime) -> SiteFacts:
    """Return what Slurm says for this user; raises SchedulerError if it says nothing of itself."""
    heard: Heard = {}
    site = ask_cluster_facts_for_user(commands, user, nodes=False, accounts=False, heard=heard)
    if site.settings is None and site.partitions is None:
        commands.run(*CONFIG)  # says why
    settings = parse_scontrol_settings(heard[CONFIG]()) if CONFIG in heard else {}
    kinds, missing = None, tuple[str, ...]()
    try:
        text = commands.run(*KINDS)
        kinds, site = parse_node_kinds(text), replace(site, nodes=parse_node_groups(text))
    except SchedulerError as error:
        missing = (f"nodes: {error.message}",)
    if site.settings is not None and site.settings.accounting and site.associations is None:
        missing += ("accounts and QOS: sacctmgr did not answer, or is not installed here",)
    facts = SiteFacts(at=now, site=site, settings=settings, kinds=kinds, unknown=(*site.unknown, *missing))
    return replace(facts, closed=find_closed_partitions(facts, list_user_groups(user)))


def parse_node_kinds(text: str) -> tuple[NodeKind, ...]:
    """Parse sinfo with the format of KINDS; nodes that differ only in their state are one kind."""
    found: dict[tuple[object, ...], NodeKind] = {}
    rows = split_rows(text, _KINDS.count("|") + 1)
    for group, (*_, features, disk, cores, names) in zip(parse_node_groups(text), rows, strict=False):
        kind = _build_node_kind(group, features, disk, cores, names)
        key = (
            kind.partition,
            kind.cpus,
            kind.memory_mb,
            *sorted(kind.gres.items()),
            kind.features,
            kind.cores,
        )
        same = found.get(key)
        if same is not None:
            kind = replace(same, nodes=same.nodes + kind.nodes, names=f"{same.names},{kind.names}")
        found[key] = kind
    return tuple(found.values())


def _build_node_kind(group: NodeGroup, features: str, disk: str, cores: str, names: str) -> NodeKind:
    said = tuple(word for word in features.split(",") if word and word != "(null)")
    return NodeKind(
        partition=group.partition,
        nodes=group.nodes,
        cpus=group.cpus,
        memory_mb=group.memory_mb,
        gres=group.gres,
        features=said,
        disk_mb=int(disk) if disk.isdecimal() else 0,
        cores=cores,
        names=names,
    )


def find_closed_partitions(facts: SiteFacts, groups: Collection[str]) -> dict[str, str]:
    """Return the partitions that refuse this user, with the reason; root is refused by none."""
    found: dict[str, str] = {}
    mine = facts.accounts
    for name, one in (facts.site.partitions or {}).items():
        if not _NAME.match(name):
            found[name] = "hpckit does not take such a name"
        elif one.root_only:
            found[name] = "RootOnly=YES"
        elif _ROOT in groups:
            continue
        elif one.allowed_groups is not None and one.allowed_groups.isdisjoint(groups):
            found[name] = f"AllowGroups={_join(one.allowed_groups)}"
        elif mine and one.allowed_accounts is not None and one.allowed_accounts.isdisjoint(mine):
            found[name] = f"AllowAccounts={_join(one.allowed_accounts)}"
        elif mine and one.denied_accounts.issuperset(mine):
            found[name] = f"DenyAccounts={_join(one.denied_accounts)}"
    return found


def list_user_groups(user: str) -> frozenset[str]:
    """Return the names of the user's groups on this host."""
    names: set[str] = set()
    try:
        numbers: Sequence[int] = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return frozenset()
    for number in numbers:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(names)


def _join(names: Collection[str]) -> str:
    return ",".join(sorted(names))
