"""Binds the ranks of this node, and what they start, to the CPUs next to their GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping

from hpckit.model.launch import LaunchConfig, NumaBinding
from hpckit.model.ranges import ranges
from hpckit.observe.health.numa import read_gpu_cpus
from hpckit.planning.jobs.cpu_binding import CpuBinding, bind_ranks
from hpckit.runtime.threads import aside

_PATIENCE_S = 5.0
"""For a driver; ranks start without a binding if it does not answer."""


async def rank_binding(
    settings: LaunchConfig, environ: Mapping[str, str], ranks: int
) -> CpuBinding:
    """Return the CPUs of each rank; free of any if the run has no GPUs or does not want it."""
    free = CpuBinding(cpus=(frozenset(),) * ranks)
    asked = settings.resources
    if settings.runtime.numa_binding is NumaBinding.off or not (asked.gpus_per_node or asked.gres):
        return free
    try:
        found = await asyncio.wait_for(aside(lambda: read_gpu_cpus(environ)), _PATIENCE_S)
    except TimeoutError:
        return free
    return bind_ranks(found, os.sched_getaffinity(0), ranks)


def bind_process(pid: int, cpus: frozenset[int]) -> None:
    """Let a process that has just started, and all that it will start, run on these CPUs only."""
    if cpus:
        with contextlib.suppress(OSError):  # it has ended, or its cgroup has lost these CPUs
            os.sched_setaffinity(pid, cpus)


def far_words(binding: CpuBinding, first_rank: int, node: str) -> str:
    """Return the warning about ranks of this node that have no CPU next to their GPU."""
    ranked = ranges(first_rank + place for place in binding.far)
    return (
        f"the job has no CPU on {node} next to the GPU of rank {ranked}: its data takes the way "
        "through the other socket; ask Slurm for CPUs by GPU "
        "(resources.additional_parameters.cpus_per_gpu), or for whole nodes"
    )
