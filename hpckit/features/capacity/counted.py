"""A plan of a model that was counted on meta: its states are known, the rest is not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.errors import ConfigError
from hpckit.features.capacity.model_plan import CapacityPlan, LaunchWords, MemoryParts
from hpckit.features.capacity.model_setup import GpuSpec, OptimizerKind
from hpckit.features.capacity.power import SiteRates, power_draw
from hpckit.features.capacity.words import check_size
from hpckit.model.parallel.layout import MOST_RANKS, Layout
from hpckit.model.parallel.model_check import CheckedModel

UNKNOWN = "activations, time and money follow from a transformer's shape: describe it with --model"
_MOST_COUNTED = 8192
"""Laying a model out over more ranks takes minutes."""
_OF_ADAM = {OptimizerKind.adam: 1.0, OptimizerKind.adam8bit: 0.25, OptimizerKind.sgd: 0.5}
"""The state of an optimizer per that of Adam, in 32 bits: two moments, two of a byte, one."""


def plan_counted(
    model: CheckedModel,
    layout: Layout,
    gpu: GpuSpec,
    optimizer: OptimizerKind,
    site: SiteRates,
    words: Sequence[str] = (),
) -> CapacityPlan:
    """Return what a counted model needs: the states of the stage that has the most.

    `words` are those of `launch` that it was counted with.
    """
    fullest = max(model.stages, key=lambda one: one.total_bytes)
    return CapacityPlan(
        gpu=gpu,
        gpus=layout.world_size,
        parameters=model.parameters,
        memory=MemoryParts(
            weights=fullest.parameter_bytes,
            gradients=fullest.gradient_bytes,
            optimizer=fullest.adam_bytes * _OF_ADAM[optimizer],
        ),
        power=power_draw(gpu, layout.world_size, site.pue),
        layout=layout,
        launch=LaunchWords(overrides=tuple(words), complete=True) if words else None,
        unknown=UNKNOWN,
    )


def rank_overrides(gpu: GpuSpec, gpus: int) -> tuple[str, ...]:
    """Return the overrides that ask for this many ranks; raises ConfigError.

    Example: 16 GPUs of which a node has 8 are `resources.nodes=2 resources.tasks_per_node=8`.
    """
    check_size("--gpus", gpus, MOST_RANKS)
    if gpus > _MOST_COUNTED:
        raise ConfigError(
            f"--gpus {gpus}: a model of your own code is counted on {_MOST_COUNTED} GPUs at most, "
            "as it is laid out on all of them",
            hint=f"count it on --gpus {_MOST_COUNTED} or fewer, or describe the model with --model",
        )
    per_node = min(gpu.node_gpus or gpu.domain, gpus)
    if gpus % per_node:
        raise ConfigError(
            f"--gpus {gpus} are no whole nodes of {per_node} x {gpu.name}",
            hint=f"give a multiple of {per_node}, or leave --gpus out, and set resources.nodes and "
            "resources.tasks_per_node",
        )
    return (f"resources.nodes={gpus // per_node}", f"resources.tasks_per_node={per_node}")


def launched_words(words: Sequence[str], ranks: Sequence[str], gpu: GpuSpec) -> tuple[str, ...]:
    """Return the words that launch a counted model; without ranks where a node is not a domain."""
    if not ranks or gpu.node_gpus is None:
        return tuple(words)
    per_node = ranks[-1].partition("=")[2]
    return (*words, *ranks, f"resources.gpus_per_node={per_node}")
