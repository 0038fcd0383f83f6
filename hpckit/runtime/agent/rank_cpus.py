"""Binds the ranks of this node, and what they start, to the CPUs next to their GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping

from hpckit.model.launch import LaunchConfig, NumaBinding
from hpckit.model.ranges import ranges
from hpckit.observe.nvml.job_gpus import read_gpu_cpus
from hpckit.planning.gpus_asked import gpus_asked
from hpckit.planning.jobs.cpu_binding import CpuBinding, bind_ranks
from hpckit.runtime.threads import aside

_PATIENCE_S = 5.0
"""For a driver; ranks start without a binding if it does not answer."""


async def rank_binding(
    settings: LaunchConfig, environ: Mapping[str, str], ranks: int
) -> CpuBinding:
    """Return the CPUs of each rank; free of any if the run has no GPUs or does not want it."""
    free = CpuBinding(cpus=(frozenset(),) * ranks)
    if settings.runtime.numa_binding is NumaBinding.off or not gpus_asked(settings.resources):
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


def binding_words(binding: CpuBinding, first_rank: int, node: str) -> str:
    """Return the warning about ranks whose GPU has no, or too few, CPUs of the job next to it."""
    ranked = ranges(first_rank + place for place in binding.far or binding.scarce)
    if binding.far:
        problem = f"the job has no CPU on {node} next to the GPU of rank {ranked}"
        then = "its data takes the way through the other socket"
    elif binding.scarce:
        problem = f"the job has too few CPUs on {node} next to the GPUs of rank {ranked}"
        then = "all ranks there run on all of its CPUs"
    else:
        return ""
    return (
        f"{problem}: {then}; ask Slurm for CPUs by GPU "
        "(resources.additional_parameters.cpus_per_gpu), or for whole nodes"
    )
