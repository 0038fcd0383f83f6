"""Which parameters of a model FSDP cannot shard: told by name, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from hpckit.errors import ConfigError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import Parallel, Precision
from hpckit.runtime.parallel.pipeline_split import PipelineSplit


def needs_fsdp(settings: Parallel) -> bool:
    """Return whether only FSDP can do what is asked for, in any layout."""
    return settings.offload or settings.params is not Precision.fp32


def is_sharded(layout: Layout, settings: Parallel) -> bool:
    """Return whether FSDP handles the parameters in training; a whole copy each is DDP's."""
    sums = layout.replicate * layout.shard * layout.context > 1
    return needs_fsdp(settings) or (sums and not layout.is_data_parallel)


def unsharded_parameters(
    model: nn.Module, plan: Plan, units: Sequence[str], split: PipelineSplit | None
) -> Iterator[ConfigError]:
    """Yield the parameters that FSDP cannot shard; the model may be on any device."""
    for name, one in model.named_parameters():
        if not one.dim():
            yield ConfigError(
                f"{name} is a number without a dimension, which this layout cannot shard",
                hint="make it a tensor with one element: torch.ones(1)",
            )
    for names in plan.ties():
        homes = {
            (_home(name, units), 0 if split is None else split.stage_of(name)) for name in names
        }
        if len({unit for unit, _ in homes}) > 1 and _share_a_rank(homes, split):
            yield ConfigError(
                f"{' and '.join(names)} are one parameter of several units, and this layout shards "
                "each unit by itself",
                hint="have a parameter of its own in each unit, keep it outside of the units, or "
                "choose parallel=none, tensor or pipeline on their own",
            )


def lost_in_new_parameters(model: nn.Module) -> Iterator[ConfigError]:
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
                f"{name} has max_norm={module.max_norm:g}: it changes its weight in forward, and "
                "in this layout that is a copy which no optimizer has",
                hint="scale the weight after optimizer.step(), or choose parallel=none or pipeline",
            )
        if module.sparse:
            yield ConfigError(
                f"{name} has sparse=True, and this layout cannot add up sparse gradients",
                hint="leave sparse out, or choose parallel=none or pipeline",
            )


def _home(name: str, units: Sequence[str]) -> str:
    """Return the unit that has a parameter; empty for one outside of all."""
    return next((unit for unit in units if name.startswith(unit + ".")), "")


def _share_a_rank(homes: set[tuple[str, int]], split: PipelineSplit | None) -> bool:
    """Return whether some rank has two of these units, each with its stage."""
    if split is None:
        return True
    places = [stage % split.places for _, stage in homes]
    return len(set(places)) < len(places)
