"""The layouts of rounds that lack nodes: fewer replicas, or a layout that the user listed. Pure.

The number of nodes alone says which layout a round has, so that the supervisor and all ranks find
the same one without asking each other.
"""

from __future__ import annotations

from hpckit.errors import ConfigError
from hpckit.model.counted import format_count
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import BatchRule, FallbackLayout
from hpckit.planning.layout import (
    count_nodes_per_replica,
    count_run_replica_nodes,
    get_requested_nodes_and_ranks,
    plan_layout,
    plan_run_layout,
)
from hpckit.values import field_names, replace


def find_layout_for_ranks(settings: LaunchConfig, world_size: int) -> Layout:
    """Return the layout of a round of this many ranks.

    The run's own one with as many replicas as they are, or else the first of `parallel.fallback`
    that they can have. Raises ConfigError if they are neither.

    Example: with `pipeline: 2` and a rank on each node, three ranks are no whole replicas. With
    `fallback: [{replicate: 1, shard: rest}]` they are `shard 3`.
    """
    layout = plan_run_layout(settings)
    replicas, left = divmod(world_size, layout.replica_size)
    if replicas and not left:
        return layout.with_replicas(replicas)
    nodes, odd = divmod(world_size, settings.resources.tasks_per_node)
    for sizes in () if odd else settings.parallel.fallback:
        found = try_fallback_layout(settings, sizes, nodes)
        if found is not None:
            return found
    raise ConfigError(
        f"{format_count(world_size, 'rank')} do not make whole replicas of {layout}, which have "
        f"{format_count(layout.replica_size, 'rank')} each",
        hint="a run shrinks by whole replicas, or to a layout of parallel.fallback; see resources.min_nodes",
    )


def try_fallback_layout(settings: LaunchConfig, sizes: FallbackLayout, nodes: int) -> Layout | None:
    """Return the layout that this many nodes have with these sizes; None if they cannot have it."""
    try:
        return _plan_layout_with_sizes(settings, sizes, nodes)
    except ConfigError:
        return None


def list_fallback_node_counts(settings: LaunchConfig) -> tuple[int, ...]:
    """Return on how many nodes the run may continue in another layout, the best first.

    Best are those of the first layout listed, and of these as many nodes as possible: a run takes
    the first number that is not more than its nodes. Raises ConfigError.

    Example: with `pipeline: 4` on 4 nodes, 2 at least, and `fallback: [{replicate: 1, shard:
    rest}]` it is (3, 2).
    """
    resources, whole = settings.resources, count_run_replica_nodes(settings)
    fewest = resources.min_nodes or resources.nodes
    counts = [nodes for nodes in range(resources.nodes, fewest - 1, -1) if nodes % whole]
    found = [
        nodes
        for sizes in settings.parallel.fallback
        for nodes in counts
        if try_fallback_layout(settings, sizes, nodes) is not None
    ]
    return tuple(dict.fromkeys(found))


def list_fallback_layouts(settings: LaunchConfig) -> dict[int, Layout]:
    """Return the layout of each number of nodes in `fallback_nodes`; raises ConfigError."""
    ranks = settings.resources.tasks_per_node
    return {
        nodes: find_layout_for_ranks(settings, nodes * ranks) for nodes in list_fallback_node_counts(settings)
    }


def check_shrinking_to_min_nodes(settings: LaunchConfig) -> None:
    """Check that a run may shrink to `resources.min_nodes`; raises ConfigError.

    By whole replicas, or to each of the layouts in `parallel.fallback`.
    """
    layout, resources = plan_run_layout(settings), settings.resources
    whole = count_nodes_per_replica(layout, resources.tasks_per_node)
    if settings.parallel.fallback:
        _check_fallback_layouts(settings)
    elif resources.min_nodes is not None and resources.min_nodes % whole:
        raise ConfigError(
            f"resources.min_nodes={resources.min_nodes}, and a replica of {layout} takes "
            f"{format_count(whole, 'node')}: a run shrinks by whole replicas",
            hint=f"take a multiple of {whole} for resources.min_nodes, smaller replicas "
            "(parallel=hsdp shards within a node), or list layouts in parallel.fallback",
        )


def _check_fallback_layouts(settings: LaunchConfig) -> None:
    fewest = settings.resources.min_nodes
    if fewest is None:
        raise ConfigError(
            "parallel.fallback lists layouts for fewer nodes, and resources.min_nodes is null: the "
            "run may not have fewer",
            hint="set resources.min_nodes to how few nodes the run may have",
        )
    if settings.parallel.batch is not BatchRule.keep:
        raise ConfigError(
            f"parallel.batch is {settings.parallel.batch}, and parallel.fallback lists layouts "
            "with other numbers of data ranks: the rows of a step would depend on them",
            hint="take parallel.batch=keep, or leave parallel.fallback out",
        )
    for place, sizes in enumerate(settings.parallel.fallback):
        try:
            _plan_layout_with_sizes(settings, sizes, fewest)
        except ConfigError as error:
            raise ConfigError(
                f"parallel.fallback[{place}] does not fit resources.min_nodes={fewest}: {error.message}",
                hint="choose sizes that these nodes can have, for example {replicate: 1, shard: rest}",
            ) from error


def _plan_layout_with_sizes(settings: LaunchConfig, sizes: FallbackLayout, nodes: int) -> Layout:
    given = {name: getattr(sizes, name) for name in field_names(FallbackLayout)}
    parallel = replace(settings.parallel, **given, fallback=[])
    return plan_layout(parallel, replace(get_requested_nodes_and_ranks(settings), nodes=nodes))
