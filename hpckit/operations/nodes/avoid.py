"""Leaves out of a launch's jobs the nodes on which earlier runs of the user found faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.cluster.nodes import expand_nodes
from hpckit.model.launch import ClusterKind
from hpckit.model.nodes.incident import NodeStanding
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec
from hpckit.planning.nodes.standing import node_standings, nodes_to_avoid
from hpckit.record.nodes.history import read_incidents
from hpckit.slurm.commands import SlurmCommands

_PATIENCE = timedelta(seconds=10)
_NODES = ("sinfo", "--noheader", "--Node", "--format=%N %P")
_DEFAULT = "*"
"""Behind the name of the default partition."""


def without_bad_nodes(plan: LaunchPlan, context: Context) -> LaunchPlan:
    """Return the plan with jobs that leave out nodes with recent incidents, and say which.

    Slurm is asked for the names of its nodes only if there are any to leave out.
    """
    settings = plan.runs[0].settings
    if plan.cluster.kind is not ClusterKind.slurm or not settings.preflight.avoid:
        return plan
    standings = node_standings(read_incidents(Path(plan.folder).parent), context.now())
    bad = [one for one in standings if one.avoided_until is not None]
    known = _nodes_by_partition(plan, context) if bad else {}
    left_out: dict[str, None] = {}
    jobs: list[JobSpec] = []
    for job in plan.jobs:
        names = _names(job.resources, bad, known)
        left_out |= dict.fromkeys(names)
        jobs.append(_without(job, names))
    if not left_out:
        return plan
    context.note(
        f"leaving out {', '.join(left_out)}: runs of yours found faults there lately "
        "(`hpckit nodes`); preflight.avoid=false takes them"
    )
    return replace(plan, jobs=tuple(jobs))


def _names(
    asked: ResourceSpec, bad: list[NodeStanding], known: Mapping[str, frozenset[str]]
) -> list[str]:
    """Return which nodes a job leaves out: none if the others might not suffice for it."""
    wanted = expand_nodes(asked.nodelist) if asked.nodelist else ()
    partitions = asked.partition.split(",") if asked.partition else [_DEFAULT]
    nodes = frozenset[str]().union(*(known.get(one, frozenset()) for one in partitions))
    names = [one.node for one in nodes_to_avoid(bad, nodes, wanted)]
    return names if asked.allocated_nodes <= len(nodes) - len(names) else []


def _without(job: JobSpec, names: list[str]) -> JobSpec:
    stated = [job.resources.exclude] if job.resources.exclude else []
    exclude = ",".join(dict.fromkeys([*stated, *names])) or None
    return replace(job, resources=replace(job.resources, exclude=exclude))


def _nodes_by_partition(plan: LaunchPlan, context: Context) -> dict[str, frozenset[str]]:
    """Return the nodes of each partition, and of the default one as `*`; none without an answer."""
    commands = SlurmCommands(
        bin_dir=plan.cluster.bin_dir, environ=context.environ, timeout=_PATIENCE
    )
    found: dict[str, set[str]] = defaultdict(set)
    try:
        rows = [line.split() for line in commands.run(*_NODES).splitlines()]
    except SchedulerError:
        return {}
    for row in rows:
        if len(row) == 2:  # noqa: PLR2004  # the two columns asked for
            node, partition = row
            found[partition.rstrip(_DEFAULT)].add(node)
            if partition.endswith(_DEFAULT):
                found[_DEFAULT].add(node)
    return {name: frozenset(nodes) for name, nodes in found.items()}
