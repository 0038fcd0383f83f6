"""Parses what scontrol, sinfo and sacctmgr print about a cluster. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from hpckit.model.cluster.preemption import Preemption, PreemptMode
from hpckit.model.cluster.site import (
    Account,
    Association,
    ClusterNode,
    NodeGroup,
    Partition,
    Qos,
    SiteSettings,
    parse_gres,
)
from hpckit.model.moment import parse_slurm_duration
from hpckit.patterns import lazy_pattern
from hpckit.slurm.parse import split_rows

SINFO_FORMAT = "%R|%D|%c|%m|%G|%T"
"""For --format with --exact: partition, nodes, then CPUs, memory in MB, gres and state of each."""

NODE_FORMAT = "%N|%P|%c|%m|%G|%T|%b"
"""For --format with --Node: name, partition (the default one with `*`), what it has, its state, and
its active features."""

USER_FORMAT = "DefaultAccount,Cluster,Account,Partition,QOS,DefaultQOS,MaxSubmitJobs,MaxWall"
"""For `sacctmgr show user NAME withassoc`: includes what the accounts pass on."""

ACCOUNT_FORMAT = "Cluster,Account,ParentName,GrpSubmitJobs"
"""For `sacctmgr show associations users=`: those without a user, which are the accounts' own."""

QOS_FORMAT = "Name,Flags,GrpSubmitJobs,MaxSubmitJobsPerUser,MaxSubmitJobsPerAccount,MaxWall"
"""For `sacctmgr show qos`."""

QOS_PREEMPTION = ("sacctmgr", "-nP", "show", "qos", "format=Name,PreemptMode,GraceTime")
"""The query for how QOS preempt, which matters only with `PreemptType=preempt/qos`."""

_SETTING = lazy_pattern(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_WORD = lazy_pattern(r"(\w+)=(\S*)")
_ARRAY_TASKS = lazy_pattern(r"(?:^|,)max_array_tasks=(\d+)", re.IGNORECASE)
_NOTHING = frozenset({"", "(null)", "none", "n/a"})


def parse_site_settings(text: str) -> SiteSettings:
    """Parse `scontrol show config`."""
    said = dict(_SETTING.findall(text))
    tasks = _ARRAY_TASKS.search(said.get("SchedulerParameters", ""))
    return SiteSettings(
        cluster=said.get("ClusterName", ""),
        release=said.get("SLURM_VERSION", ""),
        enforced=_parse_comma_separated_names(said.get("AccountingStorageEnforce", "").lower()),
        accounting="slurmdbd" in said.get("AccountingStorageType", ""),
        preempt_type=said.get("PreemptType", ""),
        preempt_mode=PreemptMode.parse(said.get("PreemptMode", "")),
        kill_wait=parse_seconds(said.get("KillWait", "")),
        array_index=_parse_count(said.get("MaxArraySize", "")),
        array_tasks=int(tasks[1]) if tasks else None,
        jobs=_parse_count(said.get("MaxJobCount", "")),
    )


def parse_partitions(text: str) -> dict[str, Partition]:
    """Parse `scontrol --oneliner show partition`; return the partitions by name."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        said = dict(_WORD.findall(line))
        if "PartitionName" in said:
            partition = _build_partition(said)
            found[partition.name] = partition
    return found


def _build_partition(said: Mapping[str, str]) -> Partition:
    return Partition(
        name=said["PartitionName"],
        default=said.get("Default", "NO").upper() == "YES",
        state=said.get("State", "UP").upper(),
        nodes=_parse_count(said.get("TotalNodes", "")),
        max_nodes=_parse_count(said.get("MaxNodes", "")),
        max_time=parse_slurm_duration(said.get("MaxTime", "")),
        default_time=parse_slurm_duration(said.get("DefaultTime", "")),
        qos=next(iter(_parse_comma_separated_names(said.get("QoS", ""))), None),
        allowed_accounts=_parse_allowed_names(said.get("AllowAccounts", "ALL")),
        denied_accounts=_parse_comma_separated_names(said.get("DenyAccounts", "")),
        allowed_qos=_parse_allowed_names(said.get("AllowQos", "ALL")),
        denied_qos=_parse_comma_separated_names(said.get("DenyQos", "")),
        allowed_groups=_parse_allowed_names(said.get("AllowGroups", "ALL")),
        hidden=said.get("Hidden", "NO").upper() == "YES",
        root_only=said.get("RootOnly", "NO").upper() == "YES",
        preemption=Preemption(
            mode=PreemptMode.parse(said.get("PreemptMode", "")),
            grace=parse_seconds(said.get("GraceTime", "")),
        ),
    )


def parse_node_groups(text: str) -> tuple[NodeGroup, ...]:
    """Parse `sinfo --exact` with SINFO_FORMAT."""
    return tuple(_build_node_group(*row) for row in split_rows(text, SINFO_FORMAT.count("|") + 1))


def _build_node_group(partition: str, nodes: str, cpus: str, memory: str, gres: str, state: str) -> NodeGroup:
    return NodeGroup(
        partition=partition,
        nodes=_parse_count(nodes) or 0,
        cpus=_parse_count(cpus) or 0,
        memory_mb=_parse_count(memory) or 0,
        gres=parse_gres(gres),
        state=state,
    )


def parse_cluster_nodes(text: str) -> tuple[ClusterNode, ...]:
    """Parse `sinfo --Node` with NODE_FORMAT: a node is listed once for each of its partitions."""
    return tuple(
        ClusterNode(
            name=name,
            default=partition.endswith("*"),
            features=_parse_comma_separated_names(features),
            has=_build_node_group(partition.rstrip("*"), "1", *has),
        )
        for name, partition, *has, features in split_rows(text, NODE_FORMAT.count("|") + 1)
    )


def parse_user_associations(text: str, cluster: str) -> tuple[str | None, tuple[Association, ...]]:
    """Return the default account, and the associations on this cluster, from USER_FORMAT."""
    rows = [row for row in split_rows(text, _count_columns(USER_FORMAT)) if _is_same_cluster(row[1], cluster)]
    found = tuple(
        Association(
            account=account,
            partition=partition,
            qos=tuple(name for name in qos.split(",") if name),
            default_qos=default_qos,
            max_submit=_parse_count(max_submit),
            max_wall=parse_slurm_duration(max_wall),
        )
        for _, _, account, partition, qos, default_qos, max_submit, max_wall in rows
        if account
    )
    return next((row[0] for row in rows if row[0]), None), found


def parse_accounts(text: str, cluster: str) -> dict[str, Account]:
    """Return the accounts of this cluster by name, from ACCOUNT_FORMAT."""
    return {
        name: Account(name=name, parent=parent, group_submit=_parse_count(submit))
        for of, name, parent, submit in split_rows(text, _count_columns(ACCOUNT_FORMAT))
        if _is_same_cluster(of, cluster)
    }


def parse_qos(text: str) -> dict[str, Qos]:
    """Return all QOS by name, from QOS_FORMAT."""
    return {
        name: Qos(
            name=name,
            flags=frozenset(flag.lower() for flag in flags.split(",") if flag),
            group_submit=_parse_count(group),
            user_submit=_parse_count(user),
            account_submit=_parse_count(account),
            max_wall=parse_slurm_duration(wall),
        )
        for name, flags, group, user, account, wall in split_rows(text, _count_columns(QOS_FORMAT))
    }


def parse_qos_preemption(text: str) -> dict[str, Preemption]:
    """Return how jobs of each QOS are preempted, from QOS_PREEMPTION."""
    return {
        name: Preemption(mode=PreemptMode.parse(mode), grace=parse_slurm_duration(grace))
        for name, mode, grace in split_rows(text, 3)
    }


def _parse_count(text: str) -> int | None:
    """Return a number; None for UNLIMITED, empty or other text. `16+` is at least 16."""
    word = text.strip().removesuffix("+").split(" ")[0]
    return int(word) if word.isdecimal() else None


def parse_seconds(text: str) -> timedelta | None:
    """Return a number of seconds as a duration: `30` or `30 sec`."""
    count = _parse_count(text)
    return None if count is None else timedelta(seconds=count)


def _parse_comma_separated_names(text: str) -> frozenset[str]:
    words = (word.strip() for word in text.split(","))
    return frozenset(word for word in words if word.lower() not in _NOTHING)


def _parse_allowed_names(text: str) -> frozenset[str] | None:
    return None if text.upper() in {"ALL", "", "(NULL)"} else _parse_comma_separated_names(text)


def _is_same_cluster(name: str, cluster: str) -> bool:
    return not cluster or name == cluster


def _count_columns(form: str) -> int:
    return form.count(",") + 1
