"""On which CPUs the ranks of a node run: those next to their GPUs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction

from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBinding:
    """The CPUs of each rank of a node; empty if a rank may run on all that the job has.

    `far` are the local ranks whose job has no CPU next to their GPU; `scarce` those for whom it has
    fewer there than their share, because of which no rank is bound.
    """

    cpus: tuple[frozenset[int], ...]
    far: tuple[int, ...] = ()
    scarce: tuple[int, ...] = ()


def plan_cpu_binding(gpu_cpus: Sequence[frozenset[int]], allowed: Collection[int], ranks: int) -> CpuBinding:
    """Return on which CPUs the ranks of a node run.

    Parameters: `gpu_cpus` are the CPUs next to each of the job's GPUs, in the order of local ranks; an empty
    set is unknown. `allowed` are the CPUs that the job has. Ranks are bound only if each has a GPU of its
    own: local rank i that of number i. Several ranks share the CPUs of a socket. They are free if one would
    have fewer CPUs next to its GPU than its share of the job's: all ranks would wait for it.

    Example:
        >>> plan_cpu_binding([frozenset({0, 1}), frozenset({2, 3})], {0, 1, 2}, 2).cpus
        (frozenset({0, 1}), frozenset({2}))

    """
    free = tuple(frozenset[int]() for _ in range(ranks))
    if len(gpu_cpus) != ranks:
        return CpuBinding(cpus=free)
    near = tuple(cpus & frozenset(allowed) for cpus in gpu_cpus)
    far = tuple(at for at, cpus in enumerate(gpu_cpus) if cpus and not near[at])
    if all(cpus in (frozenset(), frozenset(allowed)) for cpus in near):
        return CpuBinding(cpus=free, far=far)
    scarce = tuple(
        at for at in range(ranks) if near[at] and _even_cpu_share(near, at) < len(allowed) // ranks
    )
    return CpuBinding(cpus=free if scarce else near, far=far, scarce=scarce)


def _even_cpu_share(near: Sequence[frozenset[int]], rank: int) -> Fraction:
    """Return how many of its CPUs a rank has for itself if those are shared evenly."""
    shares = (Fraction(1, sum(cpu in cpus for cpus in near)) for cpu in near[rank])
    return sum(shares, Fraction())
