"""Finds the fastest layouts of a model on this many GPUs, and the smallest ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpckit.features.capacity.memory import plan_memory
from hpckit.features.capacity.model_plan import Calibration, PlannedSetup
from hpckit.features.capacity.model_setup import Recomputation, TrainingSetup
from hpckit.features.capacity.overrides import launch_words
from hpckit.features.capacity.step_time import predict_step
from hpckit.model.parallel.layout import Layout
from hpckit.values import dataclass, field, replace

_LONG = 8192
"""From this many tokens on, sequences are cut, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What is held fixed: None leaves it open. Sizes as in `TrainingSetup`; of axes in `sizes`."""

    global_batch: int
    micro_batch: int | None = None
    recompute: Recomputation | None = None
    stages_per_rank: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)


def plan_setup(setup: TrainingSetup, calibration: Calibration | None = None) -> PlannedSetup:
    """Return what a setup needs, as a measured run makes one expect it if there is one."""
    memory, time = plan_memory(setup), predict_step(setup)
    if calibration is not None:
        memory, time = calibration.memory(memory), calibration.time(time)
    return PlannedSetup(setup=setup, memory=memory, time=time, launch=launch_words(setup))


def fitting_first(planned: Iterable[PlannedSetup]) -> Sequence[PlannedSetup]:
    """Return the setups that fit, the fastest first; of the same time, the least memory first."""
    return sorted(
        (setup for setup in planned if setup.fits),
        key=lambda one: (one.time.total, one.memory.expected),
    )


def pareto(found: Sequence[PlannedSetup]) -> Sequence[PlannedSetup]:
    """Return of layouts, the fastest first, those that need less memory than all faster ones."""
    kept: list[PlannedSetup] = []
    for setup in found:
        if not kept or setup.memory.expected < kept[-1].memory.expected:
            kept.append(setup)
    return kept


def candidates(like: TrainingSetup, space: SearchSpace) -> Iterator[TrainingSetup]:
    """Yield every setup that could be; not all of them fit in memory."""
    recomputes = tuple(Recomputation) if space.recompute is None else (space.recompute,)
    for layout in _layouts(like, space):
        rows = space.global_batch // layout.data_size
        for stages in _stages_per_rank(like, layout, space.stages_per_rank):
            for micro_batch in _micro_batches(rows, space.micro_batch):
                for recompute in recomputes:
                    yield replace(
                        like,
                        layout=layout,
                        global_batch=space.global_batch,
                        stages_per_rank=stages,
                        micro_batch=micro_batch,
                        recompute=recompute,
                    )


def _layouts(like: TrainingSetup, space: SearchSpace) -> Iterator[Layout]:
    """Yield layouts: tensor and context within a domain, shards of a node or of all data ranks.

    A size that is given is taken, also where none of its own would be tried.
    """
    domain, given = min(like.gpu.domain, like.gpus), space.sizes
    for tensor in _given(given, "tensor", _divisors(like.shape.heads, domain)):
        for context in _given(given, "context", _contexts(like, domain // tensor)):
            beside, left = divmod(like.gpus, tensor * context)
            stages = () if left else _divisors(beside, like.shape.layers)
            for pipeline in _given(given, "pipeline", stages):
                data, left = divmod(beside, pipeline)
                if left or space.global_batch % data:
                    continue
                shards = sorted(_shards(like, data, domain // (tensor * context)))
                for shard in _given(given, "shard", shards):
                    if data % shard or data // shard != given.get("replicate", data // shard):
                        continue
                    yield Layout(
                        replicate=data // shard,
                        pipeline=pipeline,
                        shard=shard,
                        context=context,
                        tensor=tensor,
                    )


def _given(sizes: Mapping[str, int], axis: str, tried: Iterable[int]) -> Iterable[int]:
    return (sizes[axis],) if axis in sizes else tried


def _divisors(number: int, most: int) -> Iterator[int]:
    return (size for size in range(1, min(number, most) + 1) if number % size == 0)


def _contexts(like: TrainingSetup, most: int) -> Iterator[int]:
    longest = max(1, min(most, 2 * like.sequence // _LONG))
    return (size for size in (1, 2, 4, 8, 16) if size <= longest and like.sequence % size == 0)


def _shards(like: TrainingSetup, data: int, near: int) -> set[int]:
    if like.zero is not None:
        return {1}
    return {1, data, near} if near and data % near == 0 else {1, data}


def _stages_per_rank(like: TrainingSetup, layout: Layout, given: int | None) -> Iterator[int]:
    if layout.pipeline == 1:
        return iter((1,))
    least = like.shape.layers // layout.pipeline
    return (size for size in ((1, 2) if given is None else (given,)) if size <= least)


def _micro_batches(rows: int, given: int | None) -> Iterator[int]:
    if given is not None:
        return iter((given,) if rows % given == 0 else ())
    return (size for size in (1, 2, 4, 8, 16, 32) if rows % size == 0)
