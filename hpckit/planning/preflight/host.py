"""Whether a node itself can train: memory, folders, names, and what its job environment says. Pure.

What also concerns `doctor --env` is judged by planning.compatibility.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.counted import size_text
from hpckit.model.environment.comparison import AskedOfNode, EnvironmentComparison
from hpckit.model.environment.facts import EnvironmentFacts, FolderRole
from hpckit.model.preflight.health import NodeHealth
from hpckit.model.preflight.verdict import HealthFinding, HealthVerdict
from hpckit.model.ranges import ranges
from hpckit.planning.compatibility.judge import judge_environment

LEAST_SHARED = 64 * 2**20
"""Bytes free in /dev/shm below which ranks of a node cannot be expected to start: NCCL takes up to
tens of megabytes for each pair of GPUs, and a DataLoader passes its batches through it."""
SLOW_WRITE_S = 5.0
"""Of a small file: shared file systems take milliseconds, overloaded ones seconds."""
AVAILABLE_SHARE = 0.9
"""Of the memory that was asked for: less is free where something else took it."""
_JUDGED_HERE = frozenset({"memory"})


def host_findings(health: NodeHealth, node: str, asked: AskedOfNode) -> Iterator[HealthFinding]:
    """Yield what is wrong with a node apart from its GPUs."""
    yield from _environment(health.environment, asked)
    yield from _shared_memory(health, node)
    yield from _memory(health, node, asked)
    yield from _folder(health, node)
    yield from _names(health, node, asked)
    yield from _numa(health, node)


def _environment(facts: EnvironmentFacts, asked: AskedOfNode) -> Iterator[HealthFinding]:
    comparison = EnvironmentComparison(here=facts, node=None, asked=asked)
    for one in judge_environment(comparison):
        if one.key in _JUDGED_HERE:
            continue
        yield HealthFinding(
            check=one.key,
            verdict=HealthVerdict.crit if one.is_error else HealthVerdict.warn,
            message=one.message,
            hint=one.hint,
        )


def _shared_memory(health: NodeHealth, node: str) -> Iterator[HealthFinding]:
    found = health.environment.file_system(FolderRole.shared_memory)
    if found is None or found.free_bytes is None or found.size_bytes is None:
        return
    if found.free_bytes < min(LEAST_SHARED, found.size_bytes / 2):
        yield HealthFinding(
            check=found.role,
            verdict=HealthVerdict.crit,
            message=f"{found.path} on {node} has {size_text(found.free_bytes)} of "
            f"{size_text(found.size_bytes)} free: ranks and DataLoader workers need more",
            hint=f"`ls -l {found.path}` there shows whose files fill it; earlier jobs leave some",
        )


def _memory(health: NodeHealth, node: str, asked: AskedOfNode) -> Iterator[HealthFinding]:
    wanted, granted = asked.memory_bytes, health.environment.memory_bytes
    if wanted is None:
        return
    if granted is not None and granted < wanted:
        yield HealthFinding(
            check="memory",
            verdict=HealthVerdict.crit,
            message=f"{node} grants {size_text(granted)} of memory, and resources.mem_gb asks for "
            f"{size_text(wanted)}",
            hint="lower resources.mem_gb, or choose nodes with more memory",
        )
    elif health.available_bytes is not None and health.available_bytes < AVAILABLE_SHARE * wanted:
        yield HealthFinding(
            check="memory",
            verdict=HealthVerdict.warn,
            message=f"{node} has {size_text(health.available_bytes)} of memory free, and "
            f"resources.mem_gb asks for {size_text(wanted)}",
            hint="other jobs, or files in /dev/shm, take the rest",
        )


def _folder(health: NodeHealth, node: str) -> Iterator[HealthFinding]:
    if health.write_problem:
        yield HealthFinding(
            check="run folder",
            verdict=HealthVerdict.crit,
            message=f"{node} cannot write into the run's folder: {health.write_problem}",
            hint="its mount may be read-only, stale or full there",
        )
    elif health.write_s is not None and health.write_s > SLOW_WRITE_S:
        yield HealthFinding(
            check="run folder",
            verdict=HealthVerdict.warn,
            message=f"{node} took {health.write_s:.1f} s to write a small file into the run's "
            "folder",
            hint="the file system is overloaded, or its connection there is bad",
        )


def _names(health: NodeHealth, node: str, asked: AskedOfNode) -> Iterator[HealthFinding]:
    if asked.nodes == 1:
        return
    if health.unresolved:
        yield HealthFinding(
            check="names",
            verdict=HealthVerdict.crit,
            message=f"{node} does not know the address of {', '.join(health.unresolved)}",
            hint="its DNS, or its /etc/hosts, lacks what other nodes have",
        )


def _numa(health: NodeHealth, node: str) -> Iterator[HealthFinding]:
    if health.far_gpus:
        yield HealthFinding(
            check="numa",
            verdict=HealthVerdict.warn,
            message=f"the job has no CPU on {node} next to GPU {ranges(health.far_gpus)}: data "
            "takes the way through the other socket",
            hint="ask Slurm for CPUs next to GPUs (resources.additional_parameters.gres_flags="
            "enforce-binding), or for whole nodes (resources.exclusive=true)",
        )
