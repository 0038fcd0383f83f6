"""How many replicas a running run is to have, and whether growing is worth a restart. Pure."""

from __future__ import annotations

from datetime import timedelta

from hpckit.model.counted import format_count
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.settings import SizeWord
from hpckit.planning.fallback import list_fallback_node_counts
from hpckit.planning.layout import count_nodes_per_replica, plan_run_layout
from hpckit.values import dataclass, replace

_GAIN = 3.0
"""Growing that nobody asked for has to save this many times its restart: both are estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSize:
    """How many replicas a run is to have; one that has several on a node counts them by node.

    `configured` is what the launch asked for, `most` what its layout allows (None: any number). `bound` is
    what the user allows since the run was asked to shrink (None: any number). A replica takes `replica_nodes`
    nodes. `fallback_nodes` are the numbers of nodes for another layout, the best first.

    Example: with `configured` 2 and a satellite of one replica, a run is to have 3.
    """

    configured: int
    replica_nodes: int
    most: int | None = None
    bound: int | None = None
    fallback_nodes: tuple[int, ...] = ()

    def count_wanted_replicas(self, satellite_nodes: int = 0) -> int:
        """Return how many replicas the run is to have with this number of nodes of satellites."""
        found = self.configured + -(-satellite_nodes // self.replica_nodes)
        return min([found, *(limit for limit in (self.most, self.bound) if limit is not None)])

    def count_wanted_nodes(self, satellite_nodes: int = 0) -> int:
        """Return how many nodes that takes."""
        return self.count_wanted_replicas(satellite_nodes) * self.replica_nodes

    def count_replicas_held_by_bound(self, by: int, standing_nodes: int, satellite_nodes: int = 0) -> int:
        """Return how many of `by` more replicas are ready, and held back only by the bound.

        `standing_nodes` are all nodes that are there, those of satellites included.
        """
        if self.bound is None:
            return 0
        free = replace(self, bound=None).count_wanted_replicas(satellite_nodes)
        ready = min(free, standing_nodes // self.replica_nodes) - self.bound
        return max(0, min(by, ready))

    def with_raised_bound(self, by: int) -> RunSize:
        """Return the size with the bound raised by this many replicas."""
        return self if self.bound is None else replace(self, bound=self.bound + by)

    def with_bound(self, to: int) -> RunSize:
        """Return the size with this many replicas at most."""
        return replace(self, bound=to)

    def explain_no_growth(self, by: int, now: int) -> str | None:
        """Return why a run of `now` replicas cannot have `by` more; None if it can."""
        if self.most is None or now + by <= self.most:
            return None
        return (
            f"it has {format_count(now, 'replica')} and may have {self.most}: parallel.replicate "
            "is a number, and only with parallel.replicate=rest a run may have more than at its "
            "launch"
        )

    def explain_no_shrink(self, to: int, now: int, least: int) -> str | None:
        """Return why a run of `now` replicas cannot have only `to`; None if it can."""
        if now == 0:
            return "it has no whole replica (parallel.fallback), and cannot shrink further"
        if to >= now:
            return f"it has {format_count(now, 'replica')}: name a smaller number"
        if to < least:
            return f"resources.min_nodes is {format_count(least, 'replica')}, and {to} would be fewer"
        return None


def build_run_size(settings: LaunchConfig) -> RunSize:
    """Return the size that a launch asks for; raises ConfigError."""
    resources = settings.resources
    whole = count_nodes_per_replica(plan_run_layout(settings), resources.tasks_per_node)
    configured = resources.nodes // whole
    free = settings.parallel.replicate == SizeWord.rest
    return RunSize(
        configured=configured,
        replica_nodes=whole,
        most=None if free else configured,
        fallback_nodes=list_fallback_node_counts(settings),
    )


def find_min_replicas(settings: LaunchConfig) -> int:
    """Return to how many replicas a user may shrink a run; raises ConfigError."""
    fewest = settings.resources.min_nodes
    return 1 if fewest is None else max(1, -(-fewest // build_run_size(settings).replica_nodes))


def is_growth_worthwhile(before: int, after: int, remaining: timedelta, restart: timedelta) -> bool:
    """Return whether growing saves more than three times its restart.

    `remaining` is how long the run would still take with `before` nodes. With `after` it takes
    `before / after` of that, at best.

    Example: 2 to 3 nodes save a third of 60 minutes, which is worth a restart of 6 minutes.
    """
    if after <= before:
        return False
    return remaining * (1 - before / after) > _GAIN * restart


def count_replicas_to_order(size: RunSize, held: int, coming: int) -> int:
    """Return how many replicas to bring for a run that lost some.

    `held` is how many it has, `coming` how many were ordered and are not there yet.

    Example: of 4 replicas 2 are left, and 1 is on its way: 1 more.
    """
    return max(0, size.count_wanted_replicas() - held - coming)
