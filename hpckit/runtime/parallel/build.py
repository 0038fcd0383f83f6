"""Lays a model out over the ranks: builds it, cuts it, and wraps it, in the order that works.

Build on every rank alike, cut into stages, cut matrices, recompute, compile, shard: torch needs
this order. Sharding comes last, so that each rank then holds its own part only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from hpckit.errors import ConfigError, UsageError
from hpckit.model.environment.torch_version import OLDEST_FOR_LAYOUTS, check_torch_version
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import SCHEDULES, Parallel
from hpckit.runtime.generators import preserve_generators
from hpckit.runtime.parallel.batch_checks import ReplacedParameter
from hpckit.runtime.parallel.context.context_parallel import ContextShards
from hpckit.runtime.parallel.gradients import TiedWeight
from hpckit.runtime.parallel.initialise import PartInitialiser
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.model_checks import check_plan_and_list_units
from hpckit.runtime.parallel.pipeline import Pipeline
from hpckit.runtime.parallel.pipeline_split import PipelineSplit, StagePart, find_weights_tied_across_stages
from hpckit.runtime.parallel.recompute import recompute_and_compile_unit
from hpckit.runtime.parallel.self_check import ContextCheck, UnitCheck, make_unit_checks
from hpckit.runtime.parallel.sharding import (
    find_lost_hooks_and_options,
    find_unshardable_parameters,
    fully_shard_model_part,
    is_sharded_by_fsdp,
    needs_fsdp,
)
from hpckit.runtime.parallel.stage_check import StageCheck, copy_model_with_stand_ins
from hpckit.runtime.parallel.tensor_parallel import TensorCut
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOutModel:
    """What this rank holds of a model: `module`, to register and to optimise, and how it runs."""

    module: nn.Module
    pipeline: Pipeline | None = None
    context: ContextShards | None = None
    cut: TensorCut | None = None
    tied: tuple[TiedWeight, ...] = ()
    replaced: tuple[ReplacedParameter, ...] = ()
    checks: tuple[UnitCheck, ...] = ()
    whole_check: StageCheck | ContextCheck | None = None

    @property
    def running_modules(self) -> list[nn.Module]:
        """The module, and those of its pipeline stages, which share their units with it."""
        parts = () if self.pipeline is None else self.pipeline.parts
        return [self.module, *(part.module for part in parts)]

    def reshard(self) -> None:
        """Free what a forward pass without a backward pass leaves gathered."""
        for module in self.running_modules:
            for one in module.modules():
                if isinstance(one, FSDPModule):
                    one.reshard()


def lay_out_model(
    model: nn.Module,
    plan: Plan,
    mesh: RankMesh,
    settings: Parallel,
    initialiser: PartInitialiser | None = None,
) -> LaidOutModel:
    """Return this rank's part of a whole model, which is the same on every rank; collective.

    A model on the meta device gets its values by the initialiser, or stays there. Raises
    ConfigError if plan, model and layout do not fit together.
    """
    units = check_plan_and_list_units(model, plan, mesh.layout)
    for problem in find_sharding_problems(model, plan, units, mesh.layout, settings):
        raise problem
    return lay_out_checked_model(model, units, plan, mesh, settings, initialiser)


def lay_out_checked_model(
    model: nn.Module,
    units: Sequence[str],
    plan: Plan,
    mesh: RankMesh,
    settings: Parallel,
    initialiser: PartInitialiser | None = None,
) -> LaidOutModel:
    """Like `lay_out_model`, for a model that fits its plan and layout, by its units' names."""
    if mesh.layout.is_data_parallel and not needs_fsdp(settings):
        _initialise_part(model, initialiser)
        _recompute_and_compile_units(model, units, settings)
        return LaidOutModel(module=_wrap_in_ddp(_move_to_device(model, mesh.device), mesh))
    check_torch_version(torch.__version__, "this layout", OLDEST_FOR_LAYOUTS)
    is_checked = settings.self_check and not settings.compile  # which would keep what watches units
    split = build_pipeline_split(
        plan, units, mesh.layout, mesh.rank_index_on_axis(MeshAxis.pipeline), settings
    )
    owners = _map_modules_to_stages(model, split) if split and is_checked else {}
    outline = copy_model_with_stand_ins(model, owners)
    holder = split.copy_own_stages_as_module(model) if split else model
    parts = split.copy_each_own_stage(holder) if split else [StagePart(number=0, module=holder)]
    _move_to_device(holder, mesh.device)
    here = dict(holder.named_modules())
    own = {unit: here[unit] for unit in units if unit in here}
    earlier = dict(holder.named_parameters())
    context = _build_context_shards(mesh)
    in_parts = mesh.layout.tensor * mesh.layout.context > 1
    checks = make_unit_checks(own, context, settings) if in_parts and is_checked else ()
    cut = _apply_tensor_parallelism(holder, tuple(own), plan, mesh, settings)
    sharded = mesh.averages_gradients or needs_fsdp(settings)
    if context is not None:  # units by themselves, as they may be recomputed alone
        context.install_ring_attention([*own.values(), *(part.module for part in parts)])
    _recompute_and_compile_units(holder, tuple(own), settings)
    if sharded:
        _shard_model_parts(parts, own, mesh, settings, context, pipelined=split is not None)
    _initialise_part(holder, initialiser)
    replaced = _copy_parameter_attributes(earlier, holder)
    del earlier
    if cut is not None:
        if not sharded:
            cut.hook_gradient_placement(holder)
        cut.pass_sequence_parts_between_stages(parts, split.stages if split else 1)
    whole_check: StageCheck | ContextCheck | None = None
    if split is not None:
        holder.register_forward_pre_hook(_refuse_direct_call)
        whole_check = _build_stage_check(holder, outline, owners, parts, split, mesh)
    elif context is not None and is_checked:
        whole_check = ContextCheck(model=holder, shards=context)
    return LaidOutModel(
        module=holder,
        pipeline=None if split is None else _build_pipeline(split, parts, mesh, settings),
        context=context,
        cut=cut,
        tied=find_weights_tied_across_stages(holder, plan, mesh, split),
        replaced=replaced,
        checks=checks,
        whole_check=whole_check,
    )


def _shard_model_parts(
    parts: Sequence[StagePart],
    units: Mapping[str, nn.Module],
    mesh: RankMesh,
    settings: Parallel,
    context: ContextShards | None,
    *,
    pipelined: bool,
) -> None:
    for part in parts:
        fully_shard_model_part(part.module, tuple(units), mesh, settings, pipelined=pipelined)
    if context is not None and not settings.compile:  # which takes hooks for code of the unit
        context.pause_ring_during_hooks(units.values())


def _copy_parameter_attributes(
    earlier: Mapping[str, nn.Parameter], model: nn.Module
) -> tuple[ReplacedParameter, ...]:
    """Have new parameters carry the attributes that were set on earlier ones; return the latter."""
    replaced = []
    for name, one in model.named_parameters():
        before = earlier.get(name)
        if before is not None and before is not one:
            vars(one).update({key: mark for key, mark in vars(before).items() if key not in vars(one)})
            replaced.append(ReplacedParameter(name=name, earlier=weakref.ref(before)))
    return tuple(replaced)


def _map_modules_to_stages(model: nn.Module, split: PipelineSplit) -> dict[str, int]:
    names = [name for name, _ in model.named_modules() if name]
    ends = split.plan.match_names((*split.plan.first, *split.plan.last), names)
    outer = [end for end in ends if not any(end.startswith(other + ".") for other in ends)]
    return {name: split.find_stage_of_module(name) % split.rank_count for name in (*split.units, *outer)}


def _build_stage_check(
    holder: nn.Module,
    outline: nn.Module,
    owners: Mapping[str, int],
    parts: Sequence[StagePart],
    split: PipelineSplit,
    mesh: RankMesh,
) -> StageCheck | None:
    if not owners:
        return None
    return StageCheck(
        outline=outline,
        holder=holder,
        parts=parts,
        split=split,
        owners=owners,
        place=mesh.rank_index_on_axis(MeshAxis.pipeline),
        group=mesh.axis_group(MeshAxis.pipeline),
        device=mesh.device,
        tensor=mesh.axis_mesh(MeshAxis.tensor) if mesh.layout.tensor > 1 else None,
    )


def _refuse_direct_call(module: nn.Module, args: Any) -> None:
    del args
    raise UsageError(
        f"this {type(module).__name__} was called, but with parallel.pipeline it is this rank's stages only",
        hint="call run.train_step(model, inputs, targets), and run.evaluate",
    )


def build_model_on_meta(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the model that `build` makes, with shapes and no memory."""
    with torch.device("meta"):
        return build_seeded_model(build, seed)


def build_seeded_model(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the whole model, the same on every rank and in every layout."""
    with preserve_generators(seed=seed):
        return build()


def _initialise_part(part: nn.Module, initialiser: PartInitialiser | None) -> None:
    if initialiser is not None:
        initialiser.initialise_own_tensors(part)


def _move_to_device(model: nn.Module, device: torch.device) -> nn.Module:
    return model if any(parameter.is_meta for parameter in model.parameters()) else model.to(device)


def _wrap_in_ddp(model: nn.Module, mesh: RankMesh) -> nn.Module:
    on_gpu = [mesh.device.index] if mesh.device.type == "cuda" else None
    if any(parameter.is_meta for parameter in model.parameters()):
        return model  # a check: DDP sends parameters as soon as it is made
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model  # DDP takes none that learns nothing
    several = mesh.layout.world_size > 1  # alone, NCCL would take memory for nothing
    replicated = DistributedDataParallel(model, device_ids=on_gpu, init_sync=several)
    replicated.require_forward_param_sync = several
    return replicated


def find_sharding_problems(
    model: nn.Module, plan: Plan, units: Sequence[str], layout: Layout, settings: Parallel
) -> Iterator[ConfigError]:
    """Yield what FSDP cannot shard, if this layout shards; for a plan that fits otherwise."""
    if is_sharded_by_fsdp(layout, settings):
        split = build_pipeline_split(plan, units, layout, 0, settings)
        yield from find_unshardable_parameters(model, plan, units, split)
    if is_sharded_by_fsdp(layout, settings) or layout.tensor > 1:
        yield from find_lost_hooks_and_options(model)


def build_pipeline_split(
    plan: Plan, units: Sequence[str], layout: Layout, place: int, settings: Parallel
) -> PipelineSplit | None:
    """Return how the rank at a place of the pipeline is cut out; None without a pipeline."""
    if layout.pipeline == 1:
        return None
    each = SCHEDULES[settings.schedule]
    return PipelineSplit(
        plan=plan,
        units=tuple(units),
        stages=layout.pipeline * each,
        own=tuple(place + turn * layout.pipeline for turn in range(each)),
    )


def _apply_tensor_parallelism(
    holder: nn.Module, units: Sequence[str], plan: Plan, mesh: RankMesh, settings: Parallel
) -> TensorCut | None:
    if mesh.layout.tensor == 1:
        return None
    tensor = mesh.axis_mesh(MeshAxis.tensor)
    cut = TensorCut(mesh=tensor, plan=plan, units=tuple(units), settings=settings)
    cut.cut_model(holder)
    return cut


def _build_context_shards(mesh: RankMesh) -> ContextShards | None:
    if mesh.layout.context == 1:
        return None
    place = mesh.rank_index_on_axis(MeshAxis.context)
    return ContextShards(mesh.axis_group(MeshAxis.context), place, mesh.layout.context)


def _recompute_and_compile_units(model: nn.Module, units: Sequence[str], settings: Parallel) -> None:
    for name in units:
        recompute_and_compile_unit(model.get_submodule(name), settings)


def _build_pipeline(
    split: PipelineSplit, parts: Sequence[StagePart], mesh: RankMesh, settings: Parallel
) -> Pipeline:
    return Pipeline(
        parts=parts,
        stages=split.stages,
        schedule=settings.schedule,
        group=mesh.axis_group(MeshAxis.pipeline),
        device=mesh.device,
        microbatches=settings.microbatches,
    )
