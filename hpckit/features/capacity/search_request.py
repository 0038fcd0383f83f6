"""What a user asks to be searched for, and the answer, also if no layout fits. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hpckit.errors import ConfigError
from hpckit.features.capacity.memory import plan_memory
from hpckit.features.capacity.model_plan import FoundLayouts, PlannedSetup
from hpckit.features.capacity.model_setup import OptimizerKind, Recomputation, TrainingSetup
from hpckit.features.capacity.overrides import layout_limits
from hpckit.features.capacity.request import CapacityRequest, bill_of, finish_plan, setup_of
from hpckit.features.capacity.search import (
    SearchSpace,
    candidates,
    fitting_first,
    pareto,
    plan_setup,
)
from hpckit.model.counted import counted
from hpckit.values import replace

_MOST_GPUS = 65536
"""Up to this many GPUs are tried for a model that does not fit."""
_GIB = 2**30


def find_layouts(request: CapacityRequest) -> FoundLayouts:
    """Return the layouts that fit, with the plan of the fastest one; or what is missing.

    Raises ConfigError if no layout is possible, whatever the memory.
    """
    found = search_plans(request)
    if not found:
        return _nothing_fits(request)
    best = finish_plan(request, found[0].setup)
    return FoundLayouts(fitting=tuple(found), smaller=tuple(pareto(found)), best=best)


def search_plans(request: CapacityRequest) -> Sequence[PlannedSetup]:
    """Return the layouts that fit, the fastest first; what the request says of one is kept.

    Layouts that hpckit cannot run are left out, unless there are no others. `days` are given.
    Raises ConfigError if no layout is possible, or only the number of parameters is known.
    """
    by = request.calibration
    found = fitting_first(plan_setup(setup, by) for setup in _possible(request))
    runnable = [planned for planned in found if not layout_limits(planned.setup)]
    return [
        replace(planned, days=bill_of(request, planned.setup, planned.time.total).days)
        for planned in runnable or found
    ]


def _possible(request: CapacityRequest) -> list[TrainingSetup]:
    """Return every layout, also of those that do not fit; raises ConfigError if there is none."""
    if request.only_states:
        raise ConfigError(
            f"a search needs the model's shape, and of {request.model} only its size is known",
            hint="name a model, or give hidden, layers and heads",
        )
    if request.step_s is not None:
        raise ConfigError(
            f"--search predicts the step of each layout, and --step-s {request.step_s:g} says it",
            hint="leave one of the two out",
        )
    words = request.words
    words.check_multiple(math.prod(words.sizes.values()), request.gpus)
    like = setup_of(replace(request, parallel=(), micro_batch=1, global_batch=None))
    like = replace(like, sequence_parallel=words.sequence)
    space = SearchSpace(
        global_batch=request.global_batch or request.gpus,
        micro_batch=request.micro_batch,
        recompute=request.recompute,
        stages_per_rank=words.stages_per_rank,
        sizes=words.sizes,
    )
    _check_sizes(like, space)
    found = list(candidates(like, space))
    if not found:
        raise _no_batch(request, space)
    return found


def _check_sizes(like: TrainingSetup, space: SearchSpace) -> None:
    """Raise ConfigError for sizes that no layout of the model has, on however many GPUs."""
    sizes = {name: size for name, size in space.sizes.items() if name in ("tensor", "context")}
    pipeline = space.sizes.get("pipeline", 1)
    world = like.layout.world_size
    rest = world // (pipeline * sizes.get("tensor", 1) * sizes.get("context", 1))
    layout = replace(like.layout, replicate=rest, pipeline=pipeline, **sizes)
    stages = space.stages_per_rank or 1 if pipeline > 1 else 1
    replace(like, layout=layout, global_batch=rest, stages_per_rank=stages)


def _no_batch(request: CapacityRequest, space: SearchSpace) -> ConfigError:
    micro = "" if space.micro_batch is None else f" in parts of --micro-batch {space.micro_batch}"
    sizes = " ".join(f"{name}={size}" for name, size in space.sizes.items())
    return ConfigError(
        f"--global-batch {space.global_batch} cannot be shared out{micro} over the data ranks of "
        f"any layout of {counted(request.gpus, 'GPU')}{f' with {sizes}' if sizes else ''}",
        hint=f"give a multiple of {request.gpus * (space.micro_batch or 1)}, or fewer sizes",
    )


def _nothing_fits(request: CapacityRequest) -> FoundLayouts:
    """Return the layout that needs the least memory, and what would make one fit."""
    possible = _possible(request)
    runnable = [setup for setup in possible if not layout_limits(setup)]
    smallest = min(
        (plan_setup(setup, request.calibration) for setup in runnable or possible),
        key=lambda one: one.memory.expected,
    )
    return FoundLayouts(smallest=smallest, help=tuple(_help(request)))


def _help(request: CapacityRequest) -> Iterator[str]:
    gpus = _enough_gpus(request)
    if gpus is not None:
        yield f"--gpus {gpus}: the first number of GPUs, doubled each time, on which one fits"
    if request.recompute not in (None, Recomputation.full):
        yield from _if_less(request, replace(request, recompute=None), "without --recompute")
    if request.optimizer is OptimizerKind.adam and request.zero is None:
        less = replace(request, optimizer=OptimizerKind.adam8bit)
        yield from _if_less(request, less, "--optimizer adam8bit")
    if request.micro_batch not in (None, 1):
        yield from _if_less(request, replace(request, micro_batch=None), "without --micro-batch")
    if gpus is None:
        yield (
            f"more GPUs alone do not help, up to {_MOST_GPUS}: take shorter sequences "
            "(--sequence), a larger --global-batch, or a GPU with more memory"
        )


def _if_less(request: CapacityRequest, less: CapacityRequest, words: str) -> Iterator[str]:
    """Yield what another request needs at least, if that is less."""
    before, after = _least(request), _least(less)
    if after < before:
        fits = "which fits" if after <= request.gpu.memory else "which does not fit either"
        yield f"{words}: {after / _GIB:.1f} GiB at least, {fits}"


def _least(request: CapacityRequest) -> float:
    by = request.calibration
    found = (plan_memory(setup) for setup in _possible(request))
    return min((parts if by is None else by.memory(parts)).expected for parts in found)


def _enough_gpus(request: CapacityRequest) -> int | None:
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
            if _least(more) <= request.gpu.memory:
                return gpus
        except ConfigError:  # the batch has no part for each data rank, or sizes say otherwise
            return None
        gpus *= 2
    return None
