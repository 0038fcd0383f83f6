"""Bus bandwidth, as nccl-tests defines it. Pure.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.model.interconnect.measurement import OperationTimes, SizedTime
from hpckit.model.interconnect.operation import CommOperation

FEWEST_SIZES = 4
"""Two sizes always lie on a line; fewer than this say nothing about how well they do."""
_LARGE, _LONGER = 2**20, 10.0
"""Bandwidth counts, and not latency, from a megabyte on, or where the largest size takes ten times
what the smallest one does: on a very slow network no megabyte is reached."""
_SHARED = (CommOperation.all_gather, CommOperation.reduce_scatter, CommOperation.all_to_all)


def is_enough(times: OperationTimes) -> bool:
    """Return whether so much was measured of an operation that its bandwidth may be judged."""
    seen = times.times
    if len(seen) < FEWEST_SIZES:
        return False
    return seen[-1].size >= _LARGE or seen[-1].seconds >= _LONGER * seen[0].seconds


def bus_factor(operation: CommOperation, ranks: int) -> float:
    """Return bus bandwidth divided by size / time, for so many ranks (2 or more).

    Example: an all_reduce of 4 ranks sends 2 * 3/4 of the array over the slowest link: 1.5.
    """
    if operation is CommOperation.all_reduce:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in _SHARED else 1.0


def bus_bandwidth(operation: CommOperation, ranks: int, size: int, seconds: float) -> float:
    """Return the bus bandwidth in bytes per second: comparable with what hardware promises."""
    return size / seconds * bus_factor(operation, ranks)


def best_bus_bandwidth(
    operation: CommOperation, ranks: int, times: Sequence[SizedTime]
) -> float | None:
    """Return the bus bandwidth of the size that reached most; None if nothing was measured."""
    return max(
        (bus_bandwidth(operation, ranks, one.size, one.seconds) for one in times), default=None
    )
