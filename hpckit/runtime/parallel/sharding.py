"""Shards a model over the data axes by FSDP2: each unit, large modules outside of them, the rest.

What is gathered beside one unit is small then: the rest of a model is gathered for a whole step.
Parameters that FSDP cannot shard are named before anything starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Partial, Replicate

from hpckit.errors import ConfigError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import Parallel, Precision
from hpckit.runtime.parallel.loss.loss_check import list_tree_leaves
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.pipeline_split import PipelineSplit
from hpckit.values import dataclass, field, replace

_LARGE = 0.25
"""A module outside of units is sharded by itself from this share of the largest unit on."""


def fully_shard_model_part(
    part: nn.Module, units: Sequence[str], mesh: RankMesh, settings: Parallel, *, pipelined: bool
) -> None:
    """Shard each unit of a part, its large modules, then the rest, over the data axes, in place."""
    policy = MixedPrecisionPolicy()
    if settings.params is Precision.bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    on_gpu = mesh.device.type == "cuda"
    offload = CPUOffloadPolicy(pin_memory=on_gpu) if settings.offload else OffloadPolicy()

    def shard_module(module: nn.Module, policy: MixedPrecisionPolicy, *, reshards: bool) -> None:
        sharded = fully_shard(
            module,
            mesh=mesh.data_mesh,
            mp_policy=policy,
            offload_policy=offload,
            reshard_after_forward=reshards,
        )
        if not on_gpu:  # gloo's averages have been sums in some versions of torch
            sharded.set_force_sum_reduction_for_comms(enable=True)

    known = dict(part.named_modules())
    # A pipeline runs many microbatches between two reshards, and schedules that split the backward
    # pass lose gradients otherwise.
    for name in (unit for unit in units if unit in known):
        shard_module(known[name], policy, reshards=not pipelined)
    uses = _OtherUses(dtype=policy.param_dtype)
    for module in () if pipelined else find_large_modules(part, units):
        if mesh.layout.tensor == 1:
            uses.gather_on_read(module)
        module.register_forward_hook(_hide_view_base)
        # It is given what it was given when it was a part of the rest.
        shard_module(module, replace(policy, cast_forward_inputs=False), reshards=True)
    shard_module(part, policy, reshards=False)
    if not pipelined:
        uses.watch_forward(part)
        part.register_forward_hook(_reshard_if_no_backward_follows)


def find_large_modules(model: nn.Module, units: Sequence[str]) -> list[nn.Module]:
    """Return the modules outside of units that are large beside these, such as an embedding.

    A parameter of several modules stays with the rest: all of them need it, at both ends.
    """
    named = dict(model.named_modules())
    sizes = [_count_elements(named[unit], recurse=True) for unit in units if unit in named]
    homes = Counter(id(parameter) for each in named.values() for parameter in each.parameters(recurse=False))
    return [
        module
        for name, module in named.items()
        if sizes
        and _count_elements(module, recurse=False) >= _LARGE * max(sizes)
        and not any(f"{name}.".startswith(f"{unit}.") for unit in units)
        and next(module.children(), None) is None
        and type(module).forward is not nn.Module.forward
        and all(homes[id(parameter)] == 1 for parameter in module.parameters())
    ]


def _count_elements(module: nn.Module, *, recurse: bool) -> int:
    return sum(parameter.numel() for parameter in module.parameters(recurse=recurse))


@dataclass(slots=True, kw_only=True)
class _OtherUses:
    """Gathers a parameter that the model's forward reads, while its own module does not run.

    Such as `F.linear(hidden, self.tokens.weight)`. What is gathered is kept for this forward pass;
    its gradient is averaged over the ranks, as FSDP does, into that of the sharded parameter.
    """

    dtype: torch.dtype | None
    _runs: bool = False
    _gathered: dict[tuple[int, bool], Tensor] = field(default_factory=dict)

    def gather_on_read(self, module: nn.Module) -> None:
        """Have a module, which is not sharded yet, give out whole parameters."""
        kind = type(module)

        def read_attribute(own: Any, name: str) -> Any:
            value = kind.__getattr__(own, name)
            return self._get_whole_parameter(value) if isinstance(value, DTensor) and self._runs else value

        named = {"__getattr__": read_attribute, "__module__": kind.__module__, "__doc__": kind.__doc__}
        module.__class__ = type(kind.__name__, (kind,), named)

    def watch_forward(self, model: nn.Module) -> None:
        """Learn when the forward of a model runs."""
        model.register_forward_pre_hook(self._note_forward_begin)
        model.register_forward_hook(self._note_forward_end, always_call=True)

    def _note_forward_begin(self, *_: Any) -> None:
        self._runs = True

    def _note_forward_end(self, *_: Any) -> None:
        self._runs = False
        self._gathered = {}

    def _get_whole_parameter(self, sharded: DTensor) -> Tensor:
        key = id(sharded), torch.is_grad_enabled()
        if key not in self._gathered:
            self._gathered[key] = self._gather_parameter(sharded)
        return self._gathered[key]

    def _gather_parameter(self, sharded: DTensor) -> Tensor:
        mesh = sharded.device_mesh
        moved: Any = sharded.to(mesh.device_type)  # with offloading it is on the host
        everywhere = moved.redistribute(placements=[Replicate()] * mesh.ndim)
        whole: Any = everywhere.to_local(grad_placements=[Partial()] * mesh.ndim)
        if whole.requires_grad:
            whole.register_hook(lambda gradient: _divide_by_ranks(gradient, mesh.size()))
        gathered: Tensor = whole if self.dtype is None else whole.to(self.dtype)
        return gathered


def _divide_by_ranks(gradient: Tensor, ranks: int) -> Tensor:
    if gradient.is_cuda:  # FSDP may still add to the same gradient, on a stream of its own
        torch.cuda.synchronize(gradient.device)
    return gradient / ranks


class _WithoutBase(torch.autograd.Function):
    """The same memory, which autograd takes for a result of its own."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        del ctx
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient as it is."""
        del ctx
        return gradients[0]


def _hide_view_base(module: nn.Module, inputs: Any, output: Any) -> Any:
    """Have what is written into a module's output keep the hook that gathers its parameters."""
    del module, inputs
    is_view = isinstance(output, Tensor) and output._base is not None  # noqa: SLF001
    return _WithoutBase.apply(output) if is_view else output  # type: ignore[no-untyped-call]


def _reshard_if_no_backward_follows(module: nn.Module, inputs: Any, outputs: Any) -> None:
    """Give up what a forward pass without gradients has gathered: no backward pass follows.

    Else the parameters of the model are gathered copies until the next backward pass, whose
    gradients are missed, and which an optimizer does not change.
    """
    del inputs
    learns = any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in list_tree_leaves(outputs))
    if not learns and isinstance(module, FSDPModule):
        module.reshard()


def needs_fsdp(settings: Parallel) -> bool:
    """Return whether only FSDP can do what is asked for, in any layout."""
    return settings.offload or settings.params is not Precision.fp32


def is_sharded_by_fsdp(layout: Layout, settings: Parallel) -> bool:
    """Return whether FSDP handles the parameters in training; a whole copy each is DDP's."""
    sums = layout.replicate * layout.shard * layout.context > 1
    return needs_fsdp(settings) or (sums and not layout.is_data_parallel)


def find_unshardable_parameters(
    model: nn.Module, plan: Plan, units: Sequence[str], split: PipelineSplit | None
) -> Iterator[ConfigError]:
    """Yield the parameters that FSDP cannot shard; the model may be on any device."""
    for name, one in model.named_parameters():
        if not one.dim():
            yield ConfigError(
                f"{name} is a scalar without a dimension, which this layout cannot shard",
                hint="make it a tensor with one element: torch.ones(1)",
            )
    for names in plan.group_tied_names():
        homes = {
            (_find_unit_of(name, units), 0 if split is None else split.find_stage_of_module(name))
            for name in names
        }
        # Whether some rank has two of these units, each with its stage.
        places = {None if split is None else stage % split.rank_count for _, stage in homes}
        if len({unit for unit, _ in homes}) > 1 and len(places) < len(homes):
            yield ConfigError(
                f"{' and '.join(names)} are one parameter of several units, and this layout shards "
                "each unit by itself",
                hint="have a parameter of its own in each unit, keep it outside of the units, or "
                "choose parallel=none, tensor or pipeline on their own",
            )


def find_lost_hooks_and_options(model: nn.Module) -> Iterator[ConfigError]:
    """Yield what a model does to parameters that would be lost when others take their place."""
    for name, one in model.named_parameters():
        hooks = one._backward_hooks, one._post_accumulate_grad_hooks  # noqa: SLF001  # torch has no other way
        if any(hooks):
            yield ConfigError(
                f"{name} has a hook on its gradient, and this layout puts another parameter in its "
                "place: the hook would never be called",
                hint="change gradients between run.train_step and optimizer.step(), or choose "
                "parallel=none or pipeline",
            )
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            continue
        if module.max_norm is not None:
            yield ConfigError(
                f"{name} has max_norm={module.max_norm:g}: it changes its weight in forward, but "
                "in this layout the weight is a copy that no optimizer updates",
                hint="scale the weight after optimizer.step(), or choose parallel=none or pipeline",
            )
        if module.sparse:
            yield ConfigError(
                f"{name} has sparse=True, and this layout cannot add up sparse gradients",
                hint="leave sparse out, or choose parallel=none or pipeline",
            )


def _find_unit_of(name: str, units: Sequence[str]) -> str:
    return next((unit for unit in units if name.startswith(unit + ".")), "")
