"""Leaves out of a launch's jobs the nodes on which earlier runs of the user found faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.cluster.site import ClusterNode
from hpckit.model.finding import Finding
from hpckit.model.launch import ClusterKind
from hpckit.model.nodes import NodeStanding
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec
from hpckit.planning.nodes import (
    choose_nodes_to_avoid,
    explain_use_of_bad_nodes,
    find_usable_nodes,
    list_requested_partitions,
    rate_nodes_by_incidents,
    selects_nodes_explicitly,
)
from hpckit.record.node_history import explain_unused_node_history, read_node_incidents
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import ask_cluster_nodes
from hpckit.slurm.test_only import dry_run_sbatch
from hpckit.values import replace

_PATIENCE = timedelta(seconds=10)

Render = Callable[[LaunchPlan, JobSpec], str]
"""Returns the script of a job of a plan."""


def exclude_bad_nodes(plan: LaunchPlan, render: Render, context: Context) -> LaunchPlan:
    """Return the plan with jobs that leave out nodes with recent incidents, and say which.

    A job that Slurm would not take without them takes them. Slurm is asked only if there are any to
    leave out: once for its nodes, and for a rehearsal of each kind of job.
    """
    settings = plan.runs[0].settings
    if plan.cluster.kind is not ClusterKind.slurm or not settings.preflight.avoid:
        return plan
    output_dir = Path(plan.folder).parent
    problem = explain_unused_node_history(output_dir)
    if problem is not None:
        context.note(f"warning: {problem}")
        return plan
    standings = rate_nodes_by_incidents(read_node_incidents(output_dir), context.now())
    bad = [standing for standing in standings if standing.avoided_until is not None]
    commands = SlurmCommands(bin_dir=plan.cluster.bin_dir, environ=context.environ, timeout=_PATIENCE)
    known = _list_cluster_nodes(commands) if bad else ()
    names: dict[ResourceSpec, tuple[str, ...]] = {}
    jobs: list[JobSpec] = []
    for job in plan.jobs:
        kind = replace(job.resources, array_parallelism=1)
        if kind not in names:
            found = choose_nodes_to_exclude(kind, bad, known, context.environ)
            text = render(plan, _exclude_nodes(job, found)) if found else ""
            names[kind] = found if found and _would_slurm_accept(job, text, commands) else ()
        jobs.append(_exclude_nodes(job, names[kind]))
    left_out = dict.fromkeys(name for found in names.values() for name in found)
    if not left_out:
        return plan
    context.note(
        f"leaving out {', '.join(left_out)}: your earlier runs found faults there "
        "(`hpckit nodes`); preflight.avoid=false uses them"
    )
    return replace(plan, jobs=tuple(jobs))


def choose_nodes_to_exclude(
    asked: ResourceSpec, bad: Sequence[NodeStanding], nodes: Sequence[ClusterNode], environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Return which nodes a job leaves out: none if the others might not suffice for it.

    None either if the job chooses its nodes, or sbatch would take such a choice from `environ`.
    """
    if selects_nodes_explicitly(asked) or any(environ.get(name) for name in _CHOSEN_BY_USER):
        return ()
    asked = replace(
        asked,
        partition=asked.partition or environ.get("SBATCH_PARTITION"),
        constraint=asked.constraint or environ.get("SBATCH_CONSTRAINT"),
    )
    usable = find_usable_nodes(nodes, asked, partitions=list_requested_partitions(asked))
    if not usable:
        return ()
    usable = usable.difference(_expand_node_list(asked.exclude))
    names = tuple(node.node for node in choose_nodes_to_avoid(bad, usable, ()))
    return names if asked.allocated_nodes <= len(usable) - len(names) else ()


_CHOSEN_BY_USER = ("SBATCH_RESERVATION", "SBATCH_EXCLUDE", "SBATCH_NODELIST")


def _expand_node_list(stated: str | None) -> tuple[str, ...]:
    try:
        return expand_hostlist(stated or "")
    except ValueError:  # sbatch will say what is wrong with it
        return ()


def _would_slurm_accept(job: JobSpec, text: str, commands: SlurmCommands) -> bool:
    """Whether Slurm would take a job without the nodes; false if it does not tell."""
    try:
        return not isinstance(dry_run_sbatch(job, text, commands, lambda: None), Finding)
    except SchedulerError:
        return False


def _exclude_nodes(job: JobSpec, names: Sequence[str]) -> JobSpec:
    stated = [job.resources.exclude] if job.resources.exclude else []
    exclude = ",".join(dict.fromkeys([*stated, *names])) or None
    return replace(job, resources=replace(job.resources, exclude=exclude))


def _list_cluster_nodes(commands: SlurmCommands) -> tuple[ClusterNode, ...]:
    """Return the nodes of the cluster; none without an answer."""
    try:
        return ask_cluster_nodes(commands)
    except SchedulerError:
        return ()


def explain_why_bad_nodes_are_used(
    standings: Sequence[NodeStanding], context: Context
) -> Mapping[str, str] | None:
    """Return why launches use nodes with incidents nevertheless; None if Slurm does not answer.

    It is asked only if there are nodes that might be left out.
    """
    if all(standing.avoided_until is None for standing in standings):
        return {}
    commands = SlurmCommands(bin_dir=None, environ=context.environ, timeout=_PATIENCE)
    try:
        return explain_use_of_bad_nodes(standings, ask_cluster_nodes(commands))
    except SchedulerError:
        return None
