"""On which CPUs the ranks of a node run: those next to their GPUs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBinding:
    """The CPUs of each rank of a node; empty if a rank may run on all that the job has.

    `far` are the local ranks whose job has no CPU next to their GPU.
    """

    cpus: tuple[frozenset[int], ...]
    far: tuple[int, ...] = ()


def bind_ranks(
    gpu_cpus: Sequence[frozenset[int]], allowed: Collection[int], ranks: int
) -> CpuBinding:
    """Return on which CPUs the ranks of a node run.

    Parameters: `gpu_cpus` are the CPUs next to each of the job's GPUs, in the order of local ranks;
    an empty set is unknown. `allowed` are the CPUs that the job has. Ranks are bound only if each
    has a GPU of its own: local rank i that of number i. Several ranks share the CPUs of a socket.

    Example:
        >>> bind_ranks([frozenset({0, 1}), frozenset({2, 3})], {0, 1, 2}, 2).cpus
        (frozenset({0, 1}), frozenset({2}))

    """
    free = tuple(frozenset[int]() for _ in range(ranks))
    if len(gpu_cpus) != ranks:
        return CpuBinding(cpus=free)
    near = tuple(cpus & frozenset(allowed) for cpus in gpu_cpus)
    far = tuple(at for at, cpus in enumerate(gpu_cpus) if cpus and not near[at])
    if all(cpus in (frozenset(), frozenset(allowed)) for cpus in near):
        return CpuBinding(cpus=free, far=far)
    return CpuBinding(cpus=near, far=far)
