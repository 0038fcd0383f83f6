"""Splits many runs into several arrays if a cluster does not accept them as one. Pure.

It computes the size of an array and how many runs may run at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.errors import ConfigError
from hpckit.model.cluster.gpus_asked import gpus_asked
from hpckit.model.cluster.site import SubmitLimits
from hpckit.model.launch import LaunchConfig, Sampler

BACKLOG_JOBS = 1
"""Jobs that hpckit itself queues to submit what did not fit."""

_OURS = 3
"""hpckit's own jobs next to two arrays: the backlog job, the next one, and an auto-resume job."""

LEARNING = 4
"""How many runs of an adaptive sweep run at a time by default; all at once could learn nothing."""


def chunks(runs: Sequence[int], limits: SubmitLimits) -> tuple[tuple[int, ...], ...]:
    """Return the runs in order, in as few arrays as the cluster accepts.

    If not all of them can be queued at a time, an array is half of what can, so that the next array
    is already in the queue while one ends.
    """
    size = _size(len(runs), limits)
    return tuple(tuple(runs[start : start + size]) for start in range(0, len(runs), size))


def _size(count: int, limits: SubmitLimits) -> int:
    sizes = [count]
    if limits.array is not None:
        sizes.append(limits.array)
    bounds = [bound for bound in (limits.queued, limits.jobs) if bound is not None]
    if bounds and count > min(bounds) - BACKLOG_JOBS:
        sizes.append((min(bounds) - _OURS) // 2)
    return max(1, min(sizes))


def throttle(settings: LaunchConfig) -> int | None:
    """Return how many runs of this size may run at a time in the launch; null means no bound.

    Raises ConfigError if not even one may.
    """
    sweep, resources = settings.sweep, settings.resources
    concurrent = sweep.max_concurrent
    if concurrent is None and sweep.sampler is Sampler.optuna:
        concurrent = LEARNING
    bounds = [] if concurrent is None else [concurrent]
    gpus = (gpus_asked(resources) or 0) * (resources.nodes + resources.spare_nodes)
    if sweep.max_gpus is not None and gpus:
        bounds.append(runs_on(sweep.max_gpus, gpus))
    return min(bounds, default=None)


def runs_on(max_gpus: int, gpus: int) -> int:
    """Return how many runs of `gpus` GPUs each may run at a time under sweep.max_gpus.

    Raises ConfigError if not even one may.
    """
    if gpus > max_gpus:
        raise ConfigError(
            f"sweep.max_gpus is {max_gpus}, and one run asks for {gpus} GPUs",
            hint=f"allow at least {gpus}, or ask for fewer: resources.gpus_per_node=...",
        )
    return max_gpus // gpus
