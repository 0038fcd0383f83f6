"""The overrides of `hpckit launch` for a planned setup, and what hpckit cannot run of it. Pure.

The rules are those of `planning/layout.py` and of the runtime's pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.features.capacity.model_plan import LaunchWords
from hpckit.features.capacity.model_setup import (
    AttentionKind,
    LossKind,
    NumberType,
    OptimizerKind,
    Recomputation,
    TrainingSetup,
)
from hpckit.model.counted import format_count
from hpckit.model.parallel.layout import MeshAxis
from hpckit.model.parallel.settings import SCHEDULES, Recompute, can_compile_with_recompute

_MOST_GROUPS = max(SCHEDULES.values())
RECOMPUTE = {
    Recomputation.none: Recompute.none,
    Recomputation.selective: Recompute.selective,
    Recomputation.full: Recompute.blocks,
}


def build_launch_words(setup: TrainingSetup) -> LaunchWords:
    """Return how a setup is launched.

    Example: 8 GPUs that shard in bf16 are `parallel=fsdp parallel.params=bf16`.
    """
    return LaunchWords(
        overrides=tuple(_list_launch_overrides(setup)),
        limits=(*list_unsupported_layout_reasons(setup), *_find_unsupported_setting_reasons(setup)),
        own=tuple(_list_user_code_requirements(setup)),
        unplaced=_explain_unknown_node_count(setup),
        options=build_plan_options(setup),
    )


def build_plan_options(setup: TrainingSetup) -> tuple[str, ...]:
    """Return the options of `hpckit plan` that choose a setup among those of a search."""
    sizes = [f"{axis}={size}" for axis, size in setup.layout.sizes.items() if size > 1]
    if setup.stages_per_rank > 1:
        sizes.append(f"stages_per_rank={setup.stages_per_rank}")
    if not setup.sequence_parallel:
        sizes.append("sequence=false")
    return (
        *(("--parallel", *sizes) if sizes else ()),
        *("--global-batch", f"{setup.global_batch}", "--micro-batch", f"{setup.micro_batch}"),
        *("--sequence", f"{setup.sequence}", "--recompute", setup.recompute.value),
    )


def list_unsupported_layout_reasons(setup: TrainingSetup) -> tuple[str, ...]:
    """Return why hpckit cannot run this layout of the model, if it cannot."""
    return tuple(_find_unsupported_layout_reasons(setup))


def _list_launch_overrides(setup: TrainingSetup) -> Iterator[str]:
    yield from _list_parallel_overrides(setup)
    if setup.stages_per_rank > 1:
        yield "parallel.schedule=Interleaved1F1B"
    elif setup.layout.pipeline > 1:
        # With fewer micro batches than stages all of them run forward first.
        full = setup.microbatches >= setup.layout.pipeline
        yield f"parallel.schedule={'1F1B' if full else 'GPipe'}"
    if setup.layout.pipeline > 1 or setup.microbatches > 1:
        yield f"parallel.microbatches={setup.microbatches}"
    if setup.layout.tensor > 1 and not setup.sequence_parallel:
        yield "parallel.sequence=false"
    if setup.precision is NumberType.bf16:
        yield "parallel.params=bf16"
    recompute = RECOMPUTE[setup.recompute]
    if recompute is not Recompute.none:
        yield f"parallel.recompute={recompute}"
    layout = setup.layout
    if setup.fused and can_compile_with_recompute(recompute, tensor=layout.tensor, context=layout.context):
        yield "parallel.compile=true"
    # None where the GPUs of a node are not known, or nodes not whole.
    if not _explain_unknown_node_count(setup) and setup.gpu.gpus_per_node:
        per_node = min(setup.gpu.gpus_per_node, setup.gpus)
        yield f"resources.nodes={setup.gpus // per_node}"
        yield f"resources.tasks_per_node={per_node}"
        yield f"resources.gpus_per_node={per_node}"


def _explain_unknown_node_count(setup: TrainingSetup) -> str:
    gpu, gpus = setup.gpu, setup.gpus
    if gpu.gpus_per_node is None:
        return (
            f"it is unknown how many GPUs a node has: NVLink joins {gpu.domain} x {gpu.name} "
            f"over several nodes. With N on each: resources.nodes={gpus}/N "
            "resources.tasks_per_node=N "
            "resources.gpus_per_node=N"
        )
    per_node = min(gpu.gpus_per_node, gpus)
    if gpus % per_node:
        return (
            f"no resources.* are given, as {gpus} is not a multiple of the {per_node} GPUs that a "
            f"node of {gpu.name} has here; say how your nodes are, such as resources.nodes=N "
            "resources.tasks_per_node=N resources.gpus_per_node=N"
        )
    return ""


def _list_parallel_overrides(setup: TrainingSetup) -> Iterator[str]:
    layout = setup.layout
    cut = [axis for axis in MeshAxis if axis is not MeshAxis.replicate and layout.sizes[axis] > 1]
    if not cut:
        yield "parallel=none"
    elif cut == [MeshAxis.shard] and layout.replicate == 1:
        yield "parallel=fsdp"
    else:
        yield "parallel=layout"
        yield from (f"parallel.{axis}={layout.sizes[axis]}" for axis in cut)


def _find_unsupported_layout_reasons(setup: TrainingSetup) -> Iterator[str]:
    layout, shape = setup.layout, setup.shape
    joined = min(setup.gpu.domain, setup.gpus)
    together = layout.tensor * layout.context
    if joined % together:
        yield (
            f"tensor x context is {together}, which does not divide the {joined} GPUs on one "
            "fast interconnect"
        )
    if layout.replicate > 1 and layout.replica_size % joined and joined % layout.replica_size:
        yield f"a replica of {layout.replica_size} GPUs neither fills whole nodes nor divides one"
    if (shape.kv_heads or shape.heads) % layout.tensor:
        yield f"tensor {layout.tensor} does not divide the {shape.kv_heads} key-value heads"
    if layout.context > 1 and setup.attention is AttentionKind.eager:
        yield "context needs scaled_dot_product_attention: --attention flash"
    if layout.pipeline > 1:
        yield from _find_unsupported_pipeline_reasons(setup)


def _find_unsupported_pipeline_reasons(setup: TrainingSetup) -> Iterator[str]:
    size, groups, parts = setup.layout.pipeline, setup.stages_per_rank, setup.microbatches
    if groups > _MOST_GROUPS:
        yield f"{groups} groups of layers on a rank; hpckit's schedules take {_MOST_GROUPS} at most"
    elif groups > 1 and (parts < size * groups or parts % size):
        yield (
            f"Interleaved1F1B takes a multiple of {size} micro batches, {size * groups} or more, "
            f"and there are {parts}"
        )
    length, cut = setup.sequence // setup.layout.context, setup.layout.tensor
    if length % cut:
        yield f"tensor {cut} does not divide the {length} tokens that stages pass on"


def _find_unsupported_setting_reasons(setup: TrainingSetup) -> Iterator[str]:
    if setup.zero is not None:
        yield "ZeRO is DeepSpeed's; parallel.shard keeps states in 32 bits and shards all of them"
    if setup.precision is NumberType.fp16:
        yield "parallel.params has no fp16: it takes bf16 or fp32"
    if setup.precision is NumberType.bf16_pure:
        yield "parallel.params=bf16 keeps weights in 32 bits; your code has to keep states in 16"
    if setup.recompute is Recomputation.selective and setup.attention is AttentionKind.eager:
        yield "parallel.recompute=selective keeps the scores of eager attention: they are products"


def _list_user_code_requirements(setup: TrainingSetup) -> Iterator[str]:
    yield f"batches of {format_count(setup.global_batch, 'sequence')} of {setup.sequence} tokens"
    if setup.layout.pipeline == 1 and setup.microbatches > 1:
        yield f"run.train_step, which computes them in {setup.microbatches} parts"
    if setup.attention is AttentionKind.flash:
        yield "scaled_dot_product_attention"
    if setup.optimizer is not OptimizerKind.adam:
        yield f"the optimizer {setup.optimizer}"
    if setup.loss_kind is not LossKind.plain:
        yield f"run.train_step(…, loss=FUNCTION), with a loss that is {setup.loss_kind}"
