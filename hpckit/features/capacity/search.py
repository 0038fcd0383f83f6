"""Finds the fastest layouts of a model on this many GPUs, and the smallest ones; or what helps.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from hpckit.errors import ConfigError
from hpckit.features.capacity.memory import estimate_peak_memory
from hpckit.features.capacity.model_plan import FoundLayouts, PlannedSetup
from hpckit.features.capacity.model_setup import OptimizerKind, Recomputation, TrainingSetup
from hpckit.features.capacity.overrides import list_unsupported_layout_reasons
from hpckit.features.capacity.request import (
    CapacityRequest,
    build_capacity_plan,
    build_training_setup,
    estimate_memory_and_step_time,
    estimate_request_bill,
)
from hpckit.features.capacity.words import ParallelWords
from hpckit.model.counted import format_count
from hpckit.model.parallel.layout import Layout
from hpckit.values import replace

_MOST_GPUS = 65536
"""Up to this many GPUs are tried for a model that does not fit."""
_GIB = 2**30
_LONG = 8192
"""From this many tokens on, sequences are cut, too."""


def search_layouts(request: CapacityRequest) -> FoundLayouts:
    """Return the layouts that fit, with the plan of the fastest one; or what is missing.

    Raises ConfigError if no layout is possible, whatever the memory.
    """
    found = list_fitting_layouts(request)
    if not found:
        return _find_smallest_layout(request)
    best = build_capacity_plan(request, found[0].setup)
    return FoundLayouts(fitting=tuple(found), smaller=tuple(select_pareto_optimal(found)), best=best)


def list_fitting_layouts(request: CapacityRequest) -> Sequence[PlannedSetup]:
    """Return the layouts that fit, the fastest first; what the request says of one is kept.

    Layouts that hpckit cannot run are left out, unless there are no others. `days` are given.
    Raises ConfigError if no layout is possible, or only the number of parameters is known.
    """
    by, words = request.calibration, request.cluster_words
    found = sort_fitting_setups(
        estimate_memory_and_step_time(setup, by, words) for setup in _list_possible_setups(request)
    )
    runnable = [planned for planned in found if not list_unsupported_layout_reasons(planned.setup)]
    return [
        replace(planned, days=estimate_request_bill(request, planned.setup, planned.time.total).days)
        for planned in runnable or found
    ]


def _list_possible_setups(request: CapacityRequest) -> list[TrainingSetup]:
    """Return every layout, also of those that do not fit; raises ConfigError if there is none."""
    if request.has_only_parameter_count:
        raise ConfigError(
            f"a search needs the model's shape, but only the size of {request.model} is known",
            hint="name a model, or give hidden, layers and heads",
        )
    if request.step_s is not None:
        raise ConfigError(
            f"--search predicts the step of each layout: it takes no --step-s {request.step_s:g}",
            hint="leave one of the two out",
        )
    words = request.parallel_words
    words.check_gpu_count(math.prod(words.sizes.values()), request.gpus)
    like = build_training_setup(replace(request, parallel=(), micro_batch=1, global_batch=None))
    like = replace(like, sequence_parallel=words.sequence)
    batch = request.global_batch or request.gpus
    _refuse_impossible_axis_sizes(like, words)
    found = list(
        list_candidate_setups(
            like, batch, words, micro_batch=request.micro_batch, recompute=request.recompute
        )
    )
    if not found:
        micro = request.micro_batch
        part = "" if micro is None else f" in parts of --micro-batch {micro}"
        sizes = f" with {words.sizes_text}" if words.sizes else ""
        raise ConfigError(
            f"--global-batch {batch} cannot be shared out{part} over the data ranks of any layout "
            f"of {format_count(request.gpus, 'GPU')}{sizes}",
            hint=f"give a multiple of {request.gpus * (micro or 1)}, or fewer sizes",
        )
    return found


def _refuse_impossible_axis_sizes(like: TrainingSetup, words: ParallelWords) -> None:
    """Raise ConfigError for sizes that no layout of the model has, on however many GPUs."""
    sizes = {name: size for name, size in words.sizes.items() if name in ("tensor", "context")}
    pipeline = words.sizes.get("pipeline", 1)
    world = like.layout.world_size
    rest = world // (pipeline * sizes.get("tensor", 1) * sizes.get("context", 1))
    layout = replace(like.layout, replicate=rest, pipeline=pipeline, **sizes)
    stages = words.stages_per_rank or 1 if pipeline > 1 else 1
    replace(like, layout=layout, global_batch=rest, stages_per_rank=stages)


def _find_smallest_layout(request: CapacityRequest) -> FoundLayouts:
    """Return the layout that needs the least memory, and what would make one fit."""
    possible = _list_possible_setups(request)
    runnable = [setup for setup in possible if not list_unsupported_layout_reasons(setup)]
    smallest = min(
        (
            estimate_memory_and_step_time(setup, request.calibration, request.cluster_words)
            for setup in runnable or possible
        ),
        key=lambda need: need.memory.expected,
    )
    return FoundLayouts(smallest=smallest, help=tuple(_list_ways_to_fit(request)))


def _list_ways_to_fit(request: CapacityRequest) -> Iterator[str]:
    gpus = _find_gpu_count_that_fits(request)
    if gpus is not None:
        yield f"--gpus {gpus}: the first number of GPUs, doubled each time, on which a layout fits"
    if request.recompute not in (None, Recomputation.full):
        yield from _suggest_if_less_memory(request, replace(request, recompute=None), "without --recompute")
    if request.optimizer is OptimizerKind.adam and request.zero is None:
        less = replace(request, optimizer=OptimizerKind.adam8bit)
        yield from _suggest_if_less_memory(request, less, "--optimizer adam8bit")
    if request.micro_batch not in (None, 1):
        yield from _suggest_if_less_memory(
            request, replace(request, micro_batch=None), "without --micro-batch"
        )
    if gpus is None:
        yield (
            f"more GPUs alone do not help, up to {_MOST_GPUS}: use shorter sequences "
            "(--sequence), a larger --global-batch, or a GPU with more memory"
        )


def _suggest_if_less_memory(request: CapacityRequest, less: CapacityRequest, words: str) -> Iterator[str]:
    """Yield what another request needs at least, if that is less."""
    before, after = _find_least_memory(request), _find_least_memory(less)
    if after < before:
        fits = "which fits" if after <= request.gpu.memory else "which does not fit either"
        yield f"{words}: {after / _GIB:.1f} GiB at least, {fits}"


def _find_least_memory(request: CapacityRequest) -> float:
    by = request.calibration
    found = (estimate_peak_memory(setup) for setup in _list_possible_setups(request))
    return min((parts if by is None else by.correct_memory(parts)).expected for parts in found)


def _find_gpu_count_that_fits(request: CapacityRequest) -> int | None:
    """Return a power of 2 times the GPUs on which a layout fits; None if there is none."""
    gpus = 2 * request.gpus
    while gpus <= _MOST_GPUS:
        more = replace(
            request,
            gpus=gpus,
            recompute=request.recompute or Recomputation.full,
            micro_batch=request.micro_batch or 1,
        )
        try:
            if _find_least_memory(more) <= request.gpu.memory:
                return gpus
        except ConfigError:  # the batch has no part for each data rank, or sizes say otherwise
            return None
        gpus *= 2
    return None


def sort_fitting_setups(planned: Iterable[PlannedSetup]) -> Sequence[PlannedSetup]:
    """Return the setups that fit, the fastest first; of the same time, the least memory first."""
    return sorted(
        (setup for setup in planned if setup.fits),
        key=lambda setup: (setup.time.total, setup.memory.expected),
    )


def select_pareto_optimal(found: Sequence[PlannedSetup]) -> Sequence[PlannedSetup]:
    """Return of layouts, the fastest first, those that need less memory than all faster ones."""
    kept: list[PlannedSetup] = []
    for setup in found:
        if not kept or setup.memory.expected < kept[-1].memory.expected:
            kept.append(setup)
    return kept


def list_candidate_setups(
    like: TrainingSetup,
    global_batch: int,
    words: ParallelWords,
    *,
    micro_batch: int | None = None,
    recompute: Recomputation | None = None,
) -> Iterator[TrainingSetup]:
    """Yield every setup that could be, with what is given; not all of them fit in memory."""
    recomputes = tuple(Recomputation) if recompute is None else (recompute,)
    for layout in _list_candidate_layouts(like, global_batch, words.sizes):
        rows = global_batch // layout.data_size
        tried = (1, 2, 4, 8, 16, 32) if micro_batch is None else (micro_batch,)
        micro_batches = [size for size in tried if rows % size == 0]
        for stages in _list_stages_per_rank(like, layout, words.stages_per_rank):
            for size, again in product(micro_batches, recomputes):
                yield replace(
                    like,
                    layout=layout,
                    global_batch=global_batch,
                    stages_per_rank=stages,
                    micro_batch=size,
                    recompute=again,
                )


def _list_candidate_layouts(
    like: TrainingSetup, global_batch: int, given: Mapping[str, int]
) -> Iterator[Layout]:
    """Yield layouts: tensor and context within a domain, shards of a node or of all data ranks.

    A size that is given is taken, also where none of its own would be tried.
    """
    domain = min(like.gpu.domain, like.gpus)
    for tensor in _given_or_tried_axis_sizes(given, "tensor", _list_divisors(like.shape.heads, domain)):
        for context in _given_or_tried_axis_sizes(
            given, "context", _list_context_sizes(like, domain // tensor)
        ):
            beside, left = divmod(like.gpus, tensor * context)
            stages = () if left else _list_divisors(beside, like.shape.layers)
            for pipeline in _given_or_tried_axis_sizes(given, "pipeline", stages):
                data, left = divmod(beside, pipeline)
                if left or global_batch % data:
                    continue
                shards = sorted(_list_shard_sizes(like, data, domain // (tensor * context)))
                for shard in _given_or_tried_axis_sizes(given, "shard", shards):
                    if data % shard or data // shard != given.get("replicate", data // shard):
                        continue
                    yield Layout(
                        replicate=data // shard,
                        pipeline=pipeline,
                        shard=shard,
                        context=context,
                        tensor=tensor,
                    )


def _given_or_tried_axis_sizes(sizes: Mapping[str, int], axis: str, tried: Iterable[int]) -> Iterable[int]:
    return (sizes[axis],) if axis in sizes else tried


def _list_divisors(number: int, most: int) -> Iterator[int]:
    return (size for size in range(1, min(number, most) + 1) if number % size == 0)


def _list_context_sizes(like: TrainingSetup, most: int) -> Iterator[int]:
    longest = max(1, min(most, 2 * like.sequence // _LONG))
    return (size for size in (1, 2, 4, 8, 16) if size <= longest and like.sequence % size == 0)


def _list_shard_sizes(like: TrainingSetup, data: int, near: int) -> set[int]:
    if like.zero is not None:
        return {1}
    return {1, data, near} if near and data % near == 0 else {1, data}


def _list_stages_per_rank(like: TrainingSetup, layout: Layout, given: int | None) -> Iterator[int]:
    if layout.pipeline == 1:
        return iter((1,))
    least = like.shape.layers // layout.pipeline
    return (size for size in ((1, 2) if given is None else (given,)) if size <= least)
