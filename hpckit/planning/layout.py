"""Lays the ranks of a run out over the axes of parallelism, or says why that cannot be. Pure.

Words such as `node` become numbers here, from the resources of the run. What depends on the model
itself (heads, layers) is checked where the model is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TypeVar

from hpckit.errors import ConfigError
from hpckit.model.counted import format_count, format_ranges
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.layout import MOST_RANKS, Layout, MeshAxis
from hpckit.model.parallel.reduction_tree import is_power_of_two
from hpckit.model.parallel.settings import (
    SCHEDULES,
    SIZE_WORDS,
    BatchRule,
    Parallel,
    Precision,
    Recompute,
    Reduction,
    SizeWord,
    can_compile_with_recompute,
)
from hpckit.values import dataclass, field_names

T = TypeVar("T")

_INNER = (MeshAxis.shard, MeshAxis.context, MeshAxis.tensor)
"""The axes that may take the ranks of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """The ranks that a layout is for: `nodes` with `tasks_per_node` ranks each.

    `domain_nodes` is how many nodes NVLink connects, as fast as within a node.
    """

    nodes: int
    tasks_per_node: int
    domain_nodes: int = 1

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.tasks_per_node

    def __str__(self) -> str:
        """Return it in words: `4 ranks (2 nodes x 2)`."""
        nodes = format_count(self.nodes, "node")
        return f"{format_count(self.ranks, 'rank')} ({nodes} x {self.tasks_per_node})"


def plan_layout(parallel: Parallel, shape: NodeShape) -> Layout:
    """Return the layout of a run; raises ConfigError, naming the key, if there is none.

    Example: two nodes of four ranks with `shard: node` are `replicate 2 x shard 4`.
    """
    layout = Layout(**_resolve_axis_sizes(parallel, shape))
    if layout.world_size != shape.ranks:
        product = "the number of ranks (resources.nodes x resources.tasks_per_node)"
        possible = shape.ranks % layout.replica_size == 0
        raise ConfigError(
            f"parallel: {layout} is {format_count(layout.world_size, 'rank')}, and the run has {shape}",
            hint=f"set parallel.replicate=rest, or another size, so that their product is {product}"
            if possible
            else f"choose sizes whose product divides {shape.ranks}, {product}",
        )
    _check_tensor_ranks_share_nvlink(layout, shape)
    _check_replica_fits_nodes(layout, shape)
    _check_pipeline_schedule(parallel, layout)
    _check_tree_reduction(parallel, layout)
    _check_compile_support(parallel, layout)
    return layout


def plan_run_layout(settings: LaunchConfig) -> Layout:
    """Return the layout of a run as it is asked for, on all of its nodes; raises ConfigError."""
    return plan_layout(settings.parallel, get_requested_nodes_and_ranks(settings))


_COUNTED = attrgetter(*(name for name in field_names(LaunchConfig) if name != "params"))


def cache_by_settings(compute: Callable[[LaunchConfig], T]) -> Callable[[LaunchConfig], T]:
    """Return `compute`, called once for all runs whose settings but `params` are the same objects.

    Runs of a sweep share what it does not change, and identity is faster to test than equality.
    """
    known: dict[tuple[int, ...], tuple[LaunchConfig, T]] = {}  # kept, so that ids stay unique

    def computed(settings: LaunchConfig) -> T:
        key = tuple(map(id, _COUNTED(settings)))
        if key not in known:
            known[key] = settings, compute(settings)
        return known[key][1]

    return computed


def describe_layouts(runs: Iterable[LaunchConfig]) -> tuple[str, ...]:
    """Return the layouts of a launch's runs in words, with the runs of each if they differ.

    Empty if all of them are plain data parallelism. Raises ConfigError.

    Example: `replicate 2 x shard 4 (a replica is 1 node)`.
    """
    found: dict[str, list[int]] = {}
    planned = cache_by_settings(_describe_layout)
    for index, settings in enumerate(runs):
        found.setdefault(planned(settings), []).append(index)
    if len(found) == 1:
        return tuple(filter(None, found))
    return tuple(
        f"{words}: run{'s' * (len(indices) > 1)} {format_ranges(indices)}"
        for words, indices in found.items()
        if words
    )


def _describe_layout(settings: LaunchConfig) -> str:
    layout = plan_run_layout(settings)
    if layout.is_data_parallel:
        return ""
    per_node = settings.resources.tasks_per_node
    if layout.replica_size < per_node:
        return f"{layout} (a node has {per_node // layout.replica_size} replicas)"
    return f"{layout} (a replica is {format_count(count_nodes_per_replica(layout, per_node), 'node')})"


def get_requested_nodes_and_ranks(settings: LaunchConfig) -> NodeShape:
    """Return the ranks that a run asks for."""
    return NodeShape(
        nodes=settings.resources.nodes,
        tasks_per_node=settings.resources.tasks_per_node,
        domain_nodes=settings.cluster.nvlink_nodes,
    )


def count_nodes_per_replica(layout: Layout, tasks_per_node: int) -> int:
    """Return how many nodes a replica takes; 1 if a node holds several."""
    return max(1, layout.replica_size // tasks_per_node)


def count_run_replica_nodes(settings: LaunchConfig) -> int:
    """Return how many nodes a replica of this run takes; raises ConfigError."""
    return count_nodes_per_replica(plan_run_layout(settings), settings.resources.tasks_per_node)


def _resolve_axis_sizes(parallel: Parallel, shape: NodeShape) -> dict[str, int]:
    """Return the size of each axis by its name; words become numbers: node, then nodes, rest."""
    given = {axis: _parse_axis_size(axis, getattr(parallel, axis.value)) for axis in MeshAxis}
    words = {axis: size for axis, size in given.items() if isinstance(size, SizeWord)}
    _refuse_repeated_size_word(words)
    known = {axis: size for axis, size in given.items() if not isinstance(size, SizeWord)}
    shared = {
        SizeWord.node: (_INNER, shape.tasks_per_node, "the ranks of a node"),
        SizeWord.nodes: (tuple(MeshAxis), shape.tasks_per_node, "the ranks of the node"),
        SizeWord.rest: (tuple(MeshAxis), shape.ranks, "the ranks of the run"),
    }
    for word, (axes, ranks, what) in shared.items():
        for axis in (axis for axis, one in words.items() if one is word):
            if word is SizeWord.nodes and shape.nodes > 1:
                known[axis] = shape.nodes
                continue
            others = {other: known[other] for other in axes if other in known}
            taken = math.prod(others.values())
            if ranks % taken:
                sizes = [f"parallel.{one}={size}" for one, size in others.items() if size > 1]
                product = f", {taken}," if len(sizes) > 1 else ""
                whole = f"{what}, {ranks}; the run has {shape}"
                if ranks == shape.ranks:  # its number once
                    whole = f"the {shape} of the run"
                raise ConfigError(
                    f"{' x '.join(sizes)}{product} does not divide {whole}, "
                    f"and parallel.{axis}={word} takes what is left",
                    hint=f"choose sizes that divide {ranks}",
                )
            known[axis] = ranks // taken
    return {axis.value: known[axis] for axis in MeshAxis}


def _parse_axis_size(axis: MeshAxis, value: int | str) -> int | SizeWord:
    words = SIZE_WORDS[axis.value]
    if isinstance(value, str) and value in words:
        return SizeWord(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_RANKS:
        return value
    allowed = " or ".join(["a whole number of 1 or more", *sorted(words)])
    raise ConfigError(f"parallel.{axis}={value} is not a valid size", hint=f"parallel.{axis} takes {allowed}")


def _refuse_repeated_size_word(words: Mapping[MeshAxis, SizeWord]) -> None:
    for word in SizeWord:
        axes = [axis for axis, one in words.items() if one is word]
        if len(axes) > 1:
            keys = " and ".join(f"parallel.{axis}" for axis in axes)
            raise ConfigError(
                f"{keys} are both {word}: it is unclear how many ranks each gets",
                hint=f"give one of them a number, for example parallel.{axes[0]}=2",
            )


def _check_tensor_ranks_share_nvlink(layout: Layout, shape: NodeShape) -> None:
    """Keep matrices and sequences within a node or its NVLink domain."""
    together = layout.tensor * layout.context
    fast = shape.tasks_per_node * shape.domain_nodes
    if fast % together == 0:
        return
    raise ConfigError(
        f"parallel.tensor={layout.tensor} x parallel.context={layout.context} is {together} ranks, "
        f"which does not divide the {fast} that are in one node or NVLink domain",
        hint="keep both within a node (resources.tasks_per_node); if NVLink connects several nodes "
        "here, set cluster.nvlink_nodes to their number",
    )


def _check_replica_fits_nodes(layout: Layout, shape: NodeShape) -> None:
    """Refuse replicas that neither are whole nodes nor divide one."""
    size, per_node = layout.replica_size, shape.tasks_per_node
    if layout.replicate == 1 or size % per_node == 0 or per_node % size == 0:
        return
    raise ConfigError(
        f"parallel: a replica of {layout} is {size} ranks, and a node has {per_node}: a node "
        "would hold parts of several replicas, and its loss would stop them all",
        hint=f"choose sizes whose product divides {per_node} or is a multiple of it",
    )


def _check_pipeline_schedule(parallel: Parallel, layout: Layout) -> None:
    if parallel.schedule not in SCHEDULES:
        raise ConfigError(
            f"parallel.schedule={parallel.schedule} is not a known schedule",
            hint=f"parallel.schedule takes {', '.join(SCHEDULES)}",
        )
    if parallel.microbatches is None:
        return
    stages = layout.pipeline * SCHEDULES[parallel.schedule]
    least = 1 if parallel.schedule == "GPipe" or layout.pipeline == 1 else stages
    if parallel.microbatches < least:
        raise ConfigError(
            f"parallel.microbatches={parallel.microbatches}: {parallel.schedule} with "
            f"{format_count(stages, 'stage')} needs {least} or more",
            hint="leave it out for twice as many as stages",
        )


def _check_tree_reduction(parallel: Parallel, layout: Layout) -> None:
    """Refuse settings with which `tree` would still depend on the number of ranks."""
    if parallel.reduce is Reduction.fast:
        return
    groups = layout.data_size * (parallel.microbatches or 1)
    if not layout.is_data_parallel:
        why, hint = f"the layout is {layout}", "take parallel=none"
    elif parallel.params is not Precision.fp32:
        why, hint = f"parallel.params is {parallel.params}", "take parallel.params=fp32"
    elif parallel.offload:
        why, hint = "parallel.offload is true", "take parallel.offload=false"
    elif parallel.batch is not BatchRule.keep:
        why, hint = f"parallel.batch is {parallel.batch}", "take parallel.batch=keep"
    elif not is_power_of_two(groups):
        why = f"{format_count(layout.replicate, 'replica')} x {parallel.microbatches or 1} is {groups}"
        hint = "choose resources and parallel.microbatches whose product is 2, 4, 8, …"
    else:
        return
    raise ConfigError(
        f"parallel.reduce=tree cannot be exact here: {why}; it is for data parallelism in fp32 "
        "with a power of two of replicas x microbatches",
        hint=f"{hint}, or parallel.reduce=fast",
    )


def _check_compile_support(parallel: Parallel, layout: Layout) -> None:
    tensor, context = layout.tensor, layout.context
    if not parallel.compile or can_compile_with_recompute(parallel.recompute, tensor=tensor, context=context):
        return
    if parallel.recompute is Recompute.selective:
        what = f"keep some results, and whose matrices are cut (tensor {tensor})"
    else:
        what = f"are computed again, and whose sequences are cut (context {context})"
    others = [
        f"parallel.recompute={choice}"
        for choice in Recompute
        if can_compile_with_recompute(choice, tensor=tensor, context=context)
    ]
    raise ConfigError(
        f"torch cannot compile units that {what}: parallel.recompute={parallel.recompute}",
        hint=f"take {' or '.join(others)}, or parallel.compile=false",
    )
