"""Counts the model of an experiment in its layout, without its memory and without its GPUs.

It composes a launch of one run and writes nothing. The user's function runs in a process of its
own, up to its first training step.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import ConfigError
from hpckit.features.capacity.model_plan import CapacityPlan, LaunchWords, MemoryParts
from hpckit.features.capacity.model_setup import GpuSpec, OptimizerKind
from hpckit.features.capacity.power import SiteRates, estimate_power_draw
from hpckit.features.capacity.request import UNKNOWN
from hpckit.features.capacity.words import check_whole_number
from hpckit.model.parallel.layout import MOST_RANKS, Layout
from hpckit.model.parallel.model_check import CheckedModel
from hpckit.model.plan import LaunchPlan
from hpckit.operations.model_check import ModelChecks
from hpckit.operations.prepare import prepare_launch
from hpckit.planning.layout import plan_run_layout

_MOST_COUNTED = 8192
"""Laying a model out over more ranks takes minutes."""
_OF_ADAM = {OptimizerKind.adam: 1.0, OptimizerKind.adam8bit: 0.25, OptimizerKind.sgd: 0.5}
"""The state of an optimizer per that of Adam, in 32 bits: two moments, two of a byte, one."""


def build_and_count_experiment_model(
    request: ComposeRequest, context: Context, *, quiet: bool = False
) -> tuple[CheckedModel, Layout]:
    """Return the model as the code of the one run builds it, and the layout on all of its ranks.

    Raises any kind of UsageError. Also if its code does not come as far as `run.parallelize`.
    """
    prepared = prepare_launch(request, ("plan", *request.overrides), context, quiet=quiet)
    plan = prepared.plan
    if len(plan.runs) != 1:
        raise ConfigError(
            f"this is {len(plan.runs)} runs, but a plan is for one run",
            hint="choose one value of each key, and one stage",
        )
    settings = plan.runs[0].settings
    if settings.entry_point is None:
        raise ConfigError(
            "this launch runs a command: only the command knows its model",
            hint="describe the model: --model 'hidden=4096 layers=32 heads=32'",
        )
    checks = ModelChecks(
        plan=plan, snapshot=prepared.snapshot, context=context, whole_copies=True, fallback=False
    )
    with context.show_progress("counting the model", quiet=quiet):
        findings = list(checks.findings())
    if refused := [finding for finding in findings if finding.is_error]:
        raise ConfigError(refused[0].message, hint=refused[0].hint)
    if not checks.models:
        why = checks.unmade[0] if checks.unmade else "it has no parameters"
        raise ConfigError(
            f"{_format_experiment_name(plan)} cannot be counted: {why}",
            hint="have it call run.parallelize, or describe the model: --model "
            "'hidden=4096 layers=32 heads=32'",
        )
    return checks.models[0], plan_run_layout(settings)


def _format_experiment_name(plan: LaunchPlan) -> str:
    """Return the experiment, or the function if none was chosen by name."""
    settings = plan.runs[0].settings
    entry_point = str(settings.entry_point)
    module, _, function = entry_point.partition(":")
    ours = module.startswith("hpckit.experiments.")
    return f"{module.rpartition('.')[2]} ({entry_point})" if ours and function else entry_point


def plan_states_of_counted_model(
    model: CheckedModel,
    layout: Layout,
    gpu: GpuSpec,
    optimizer: OptimizerKind,
    site: SiteRates,
    words: Sequence[str],
) -> CapacityPlan:
    """Return what a counted model needs: the states of the stage that has the most.

    `words` are those of `launch` that it was counted with.
    """
    fullest = max(model.stages, key=lambda stage: stage.training_state_bytes)
    return CapacityPlan(
        gpu=gpu,
        gpus=layout.world_size,
        parameters=model.parameters,
        memory=MemoryParts(
            weights=fullest.parameter_bytes,
            gradients=fullest.gradient_bytes,
            optimizer=fullest.adam_bytes * _OF_ADAM[optimizer],
        ),
        power=estimate_power_draw(gpu, layout.world_size, site.pue),
        layout=layout,
        launch=LaunchWords(overrides=tuple(words), complete=True) if words else None,
        unknown=UNKNOWN,
    )


def build_node_and_task_overrides(gpu: GpuSpec, gpus: int) -> tuple[str, ...]:
    """Return the overrides that ask for this many ranks; raises ConfigError.

    Example: 16 GPUs of which a node has 8 are `resources.nodes=2 resources.tasks_per_node=8`.
    """
    check_whole_number("--gpus", gpus, MOST_RANKS)
    if gpus > _MOST_COUNTED:
        raise ConfigError(
            f"--gpus {gpus}: a model of your own code is counted on {_MOST_COUNTED} GPUs at most, "
            "as it is laid out on all of them",
            hint=f"count it on --gpus {_MOST_COUNTED} or fewer, or describe the model with --model",
        )
    per_node = min(gpu.gpus_per_node or gpu.domain, gpus)
    if gpus % per_node:
        raise ConfigError(
            f"--gpus {gpus} do not fill whole nodes of {per_node} x {gpu.name}",
            hint=f"give a multiple of {per_node}, or leave --gpus out, and set resources.nodes and "
            "resources.tasks_per_node",
        )
    return (f"resources.nodes={gpus // per_node}", f"resources.tasks_per_node={per_node}")


def build_launch_overrides(words: Sequence[str], ranks: Sequence[str], gpu: GpuSpec) -> tuple[str, ...]:
    """Return the words that launch a counted model; without ranks where a node is not a domain."""
    if not ranks or gpu.gpus_per_node is None:
        return tuple(words)
    per_node = ranks[-1].partition("=")[2]
    return (*words, *ranks, f"resources.gpus_per_node={per_node}")
