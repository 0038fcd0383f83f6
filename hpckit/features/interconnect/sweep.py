"""Times every operation in growing sizes until the time is spent, the same on all ranks.

Sizes are the outer loop, so that a bound that is too short leaves all operations alike. Rank 0's
clock decides alone what is measured next. What all must know alike goes through the process group
that is measured: there is no other one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from hpckit.features.interconnect.model import CommOperation, OperationTimes, SizedTime
from hpckit.features.interconnect.operations import PreparedOperation, RankWorld, prepare_operation
from hpckit.runtime.preflight.device_speed import finish, timed_alone
from hpckit.values import dataclass, field

FEWEST_REPEATS, MOST_REPEATS = 5, 30
_SLOT_S = 0.25
"""Repeats of one size take about this long, within these bounds."""
_TIME, _MEMORY = "the time was spent", "memory did not suffice"
_SHOWN = 200


@dataclass(slots=True, kw_only=True)
class OperationSweep:
    """What this rank has seen of an operation; `cost_s` is what its last size took in all."""

    operation: CommOperation
    medians: list[tuple[int, float, int]] = field(default_factory=list)
    missing: str = ""
    ended: str = ""
    wrong: bool = False
    cost_s: float = 0.0


def sweep_operations(
    operations: Iterable[CommOperation], sizes: Iterable[int], time_s: float, world: RankWorld
) -> tuple[OperationTimes, ...]:
    """Return the times of all ranks together; each of them must call it."""
    began = time.monotonic()
    sweeps = [
        OperationSweep(operation=one, missing=missing_before(one, world)) for one in operations
    ]
    for size in sizes:
        for one in sweeps:
            if one.missing or one.ended:
                continue
            left = time_s - (time.monotonic() - began)
            if not decided(2 * one.cost_s <= left, world):
                one.ended = _TIME
                continue
            started = time.monotonic()
            measure_size(one, size, world)
            one.cost_s = time.monotonic() - started
    return tuple(_of_all_ranks(one, world) for one in sweeps)


def missing_before(operation: CommOperation, world: RankWorld) -> str:
    """Return why an operation cannot be measured at all; empty if it may be."""
    if operation.needs_device:
        return "" if world.device.type == "cuda" else "ranks use no GPU"
    return "" if world.size > 1 else "one rank alone joins no others"


def measure_size(sweep: OperationSweep, size: int, world: RankWorld) -> None:
    """Check and time one size; the first one that fails shows that the backend has it not."""
    prepared, trouble = _prepared(sweep.operation, size, world), ""
    if anywhere(here=prepared is None, world=world) or prepared is None:
        sweep.ended = _MEMORY
        return
    result, act, wanted = prepared
    finish(world.device)
    try:
        act()
        finish(world.device)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        trouble = str(error).partition("\n")[0][:_SHOWN] or type(error).__name__
    if anywhere(here=bool(trouble), world=world):
        if sweep.medians:
            raise RuntimeError(f"{sweep.operation} of {size} bytes failed: {trouble}")
        sweep.missing = f"the backend does not have it: {trouble}"
        return
    sweep.wrong |= not torch.equal(result, wanted())
    estimate = timed(act, world)
    repeats = int(decided(repeats_within(_SLOT_S, estimate), world))
    seconds = median(timed(act, world) for _ in range(repeats))
    sweep.medians.append((size, seconds, repeats))


def _prepared(operation: CommOperation, size: int, world: RankWorld) -> PreparedOperation | None:
    """Return an operation with its buffers; None if memory does not suffice."""
    try:
        return prepare_operation(operation, size, world)
    except RuntimeError:  # torch's OutOfMemoryError is one, and the host's allocator raises it
        return None


def repeats_within(slot_s: float, estimate_s: float) -> int:
    """Return how many repeats a slot of time has, at least 5 and at most 30."""
    return max(FEWEST_REPEATS, min(MOST_REPEATS, int(slot_s / max(estimate_s, 1e-9))))


def timed(act: Callable[[], object], world: RankWorld) -> float:
    """Return the seconds of an action that all ranks begin together."""
    if world.size > 1:
        dist.barrier()
    return timed_alone(act, world.device)


def _of_all_ranks(sweep: OperationSweep, world: RankWorld) -> OperationTimes:
    seen = gathered({"medians": sweep.medians, "wrong": sweep.wrong}, world)
    times = []
    for place, (size, _, repeats) in enumerate(sweep.medians):
        seconds = [one["medians"][place][1] for one in seen]
        times.append(
            SizedTime(
                size=size,
                seconds=max(seconds),
                fastest_s=min(seconds),
                slowest_rank=seconds.index(max(seconds)),
                repeats=repeats,
            )
        )
    return OperationTimes(
        operation=sweep.operation,
        times=tuple(times),
        missing=sweep.missing,
        wrong_ranks=tuple(rank for rank, one in enumerate(seen) if one["wrong"]),
        ended=sweep.ended,
    )


def decided(value: Any, world: RankWorld) -> Any:
    """Return rank 0's value on every rank; each of them must call it."""
    told = [value]
    if world.size > 1:
        dist.broadcast_object_list(told, 0)
    return told[0]


def gathered(value: Any, world: RankWorld) -> list[Any]:
    """Return every rank's value, by rank; each of them must call it."""
    everyone = [value] * world.size
    if world.size > 1:
        dist.all_gather_object(everyone, value)
    return everyone


def anywhere(*, here: bool, world: RankWorld) -> bool:
    """Return whether it is true on any rank; each of them must call it."""
    return any(gathered(here, world))
