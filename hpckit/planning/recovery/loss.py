"""Whether an attempt or a round ended because of nodes, and which: missing, lost, not to be prepared. Pure.

It distinguishes a lost node from a rank that failed by itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.counted import format_ranges
from hpckit.model.failure import Cause, Failure, RankExit, Trait
from hpckit.model.nodes import suggests_shared_cause
from hpckit.model.parallel.layout import Layout, describe_ranks_in_layout
from hpckit.planning.recovery.ends import find_first_failure
from hpckit.values import dataclass

_SHARED = "this many at once were lost for a shared cause"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilence:
    """What is missing from a round on these nodes.

    `silent` are the ranks without an exit record. `lost` maps the place of each node whose agent is
    gone to the time of its last sign of life. It is on the same clock as `failed_at`, the time at
    which the first rank was reported to fail. `layout` is that of the round.
    """

    nodes: Sequence[str]
    tasks_per_node: int
    silent: Sequence[int]
    lost: Mapping[int, float]
    failed_at: float = math.inf
    step: int | None = None
    layout: Layout | None = None


def build_node_loss_failure(absence: NodeSilence, exits: Sequence[RankExit]) -> Failure | None:
    """Return the failure that names the nodes of silent ranks, if their loss ended the round."""
    if not absence.silent or _did_rank_fail_before_node_loss(absence, exits):
        return None
    silent = {rank // absence.tasks_per_node for rank in absence.silent}
    # A node whose agent responds is not lost, even if its ranks did not report in time.
    places = silent & absence.lost.keys() or silent
    names = [absence.nodes[place] for place in sorted(places)]
    together = suggests_shared_cause(len(names), len(absence.nodes))
    nodes = None if together else ", ".join(names)
    words = "lost the agent of" if absence.lost else "no exit record came from"
    ranks = [rank for rank in absence.silent if rank // absence.tasks_per_node in places]
    place = describe_ranks_in_layout(ranks, absence.layout)
    more = f"; {place}" if place else ""
    words += f" {compress_to_hostlist(names)} (rank {format_ranges(ranks)}{more})"
    return Failure(
        cause=Cause.node_lost,
        message=f"{words}; {_SHARED}" if together else words,
        node=nodes,
        step=absence.step,
        signature=f"{Cause.node_lost} {nodes or 'together'}",
    )


def build_missing_agents_failure(
    names: Sequence[str], came: Collection[str], *, wanted: int, why: str, told: bool = False
) -> Failure:
    """Return the failure recorded when the agents of `wanted` nodes did not all report.

    `why` says why the wait ended. If none of several nodes reported, or most of many did not,
    something they share is broken or slow, and no node is blamed. No node is blamed either if the
    attempt was `told` to stop before they could report.
    """
    missing = [name for name in names if name not in came]
    together = (not came and wanted > 1) or suggests_shared_cause(len(missing), len(names))
    words = f"{why}: {len(came)} of {wanted} nodes reported"
    words += f"; missing: {compress_to_hostlist(missing)}" if missing else ""
    if together and not told:
        words += " (they share the file system of the launch, cluster.python and cluster.setup)"
    return Failure(
        cause=Cause.agents_missing,
        message=words,
        node=None if told or together else ", ".join(missing) or None,
        signature=Cause.agents_missing,
    )


def _did_rank_fail_before_node_loss(absence: NodeSilence, exits: Sequence[RankExit]) -> bool:
    """Whether a rank failed by itself while all nodes that are lost by now still reported.

    The ranks of other nodes also fail because of a lost one, with a connection error or a signal.
    """
    failure = find_first_failure(exits)
    if failure is None or failure.cause.has_trait(Trait.felt):
        return False
    return absence.failed_at < min(absence.lost.values(), default=math.inf)


def build_loss_before_start_failure(nodes: Sequence[str], standing: Collection[str]) -> Failure:
    """Return the failure of a round that lost some of its nodes before it could start."""
    gone = [node for node in nodes if node not in standing]
    if len(gone) == len(nodes):
        return Failure(cause=Cause.node_lost, message="no node is left", signature="none")
    words = f"lost the agent of {compress_to_hostlist(gone)} before the round began"
    together = suggests_shared_cause(len(gone), len(nodes))
    named = None if together else ", ".join(gone)
    return Failure(
        cause=Cause.node_lost,
        message=f"{words}; {_SHARED}" if together else words,
        node=named,
        signature=f"{Cause.node_lost} {named or 'together'}",
    )


def build_silent_supervisor_failure(silent_s: float, step: int | None) -> Failure:
    """Return the failure of a supervisor that was silent so long that its agents left."""
    return Failure(
        cause=Cause.launcher_lost,
        message=f"the supervisor was held up for {silent_s:.0f} s: "
        "its agents considered it lost, stopped their ranks and left",
        step=step,
        signature=Cause.launcher_lost,
    )


SLOW_FACTOR = 5
"""A node is too slow if it needs this many times what half of the nodes needed at most."""
_SLOW_LEAST_S = 60.0
_SHOWN_PROBLEMS = 3


def find_slow_nodes(
    waited_s: float, done: Sequence[float], waiting: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the nodes that are too slow, after so many seconds.

    `done` are the times of the others, `waiting` has each node's providers, nearest first: one that
    waits for a node that is itself waiting is not to blame. None before half of the nodes are there.
    """
    if not done or len(done) < len(waiting):
        return ()
    if waited_s < max(SLOW_FACTOR * median(done), _SLOW_LEAST_S):
        return ()
    return tuple(node for node, providers in waiting.items() if not {*providers[:1]} & waiting.keys())


def build_preparation_failure(problems: Mapping[str, tuple[Cause, str]], nodes: int) -> Failure | None:
    """Return the failure of nodes that could not be prepared; None without any.

    No node is blamed for what no node could do, or what most have in common. A container that starts on
    other nodes is no fault of its image.
    """
    if not problems:
        return None
    shared = suggests_shared_cause(len(problems), nodes)
    of_node = {Cause.container: Cause.unhealthy} if len(problems) < nodes and not shared else {}
    causes = [of_node.get(cause, cause) for cause, _ in problems.values()]
    lasting = [cause for cause in causes if cause.has_trait(Trait.lasting)]
    cause = (lasting or causes)[0]
    alike: dict[str, list[str]] = {}
    for node, (_, problem) in problems.items():
        alike.setdefault(problem, []).append(node)
    told = [f"{compress_to_hostlist(sorted(names))}: {problem}" for problem, names in alike.items()]
    words = "\n".join(told[:_SHOWN_PROBLEMS])
    if len(told) > _SHOWN_PROBLEMS:
        words += f"\nand {len(told) - _SHOWN_PROBLEMS} more"
    blamed = None if lasting or shared else ", ".join(sorted(problems))
    return Failure(cause=cause, message=words, node=blamed, signature=f"{cause} {blamed or 'together'}")
