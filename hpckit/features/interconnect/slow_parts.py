"""Which nodes and links are slow, by the times of pairs of nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import median, quantiles

from hpckit.features.interconnect.model_measurement import NodeGroupTime, SlowLink, SlowParts
from hpckit.planning.preflight.tournament import Group

SLOW = 1.5
"""A pair is slow that takes at least this many times what healthy pairs take. Our judgement: pairs
of a quiet network differ by a tenth, and links that are worth a report by a half."""
_OF_SPREAD = 3.0
"""Where repeats of the same exchange differ, more is needed: this many times their spread."""
_FEWEST_PAIRS = 3
"""Of two nodes nothing else tells which is slow, or how fast their link should be."""
_OF_A_NODE = 0.75
"""The share of a node's pairs that are slow if the node is, and not single links of it."""


def slow_factor(groups: Iterable[NodeGroupTime]) -> float:
    """Return how many times longer than usual is slow, on a network as noisy as these groups.

    The slower half of them does not count: what makes them slow may make them uneven.
    """
    by_time = sorted(groups, key=lambda one: one.seconds / max(1, len(one.nodes) - 1))
    faster = by_time[: (len(by_time) + 1) // 2]
    return max(SLOW, 1 + _OF_SPREAD * median(one.spread for one in faster)) if faster else SLOW


def usual_seconds(times: Mapping[Group, float]) -> float:
    """Return what a healthy pair takes: the time below which a quarter of all pairs are.

    The median would be a slow one where a node of three is slow: two of three pairs.
    """
    values = sorted(times.values())
    if len(values) < 4:  # noqa: PLR2004  # a quarter of three is none
        return values[0]
    return quantiles(values, n=4, method="inclusive")[0]


def slow_pairs(times: Mapping[Group, float], factor: float = SLOW) -> list[Group]:
    """Return the pairs that are slow, among at least three."""
    if len(times) < _FEWEST_PAIRS:
        return []
    usual = usual_seconds(times)
    return [pair for pair, seconds in times.items() if seconds > factor * usual]


def find_slow_parts(times: Mapping[Group, float], factor: float = SLOW) -> SlowParts:
    """Return slow nodes (their pairs are slow) and slow links (pairs of nodes that are not).

    A pair is slow that takes more than `factor` times what is usual.

    Example: of four nodes, if (0, 1), (0, 2) and (0, 3) are slow, node 0 is.
    """
    if not times:
        return SlowParts()
    slow, usual = slow_pairs(times, factor), usual_seconds(times)
    if not slow:
        return SlowParts(usual_s=usual)
    nodes: list[int] = []
    while (worst := _worst_node(slow, times, nodes)) is not None:
        nodes.append(worst)
    links = [SlowLink(first=pair[0], second=pair[1]) for pair in _without(slow, nodes)]
    return SlowParts(
        nodes=tuple(sorted(nodes)),
        links=tuple(sorted(links, key=lambda one: (one.first, one.second))),
        usual_s=usual,
        factor=median(times[pair] for pair in slow) / usual,
    )


def _worst_node(
    slow: Collection[Group], times: Collection[Group], named: Collection[int]
) -> int | None:
    """Return the node with most slow pairs, if nearly all of its pairs are slow."""
    counts = Counter(node for pair in _without(slow, named) for node in pair)
    everyone = Counter(node for pair in _without(times, named) for node in pair)
    for node, count in counts.most_common(1):
        if count >= 2 and count >= _OF_A_NODE * everyone[node]:  # noqa: PLR2004  # one is a link
            return node
    return None


def _without(pairs: Collection[Group], nodes: Collection[int]) -> list[Group]:
    return [pair for pair in pairs if not set(pair) & set(nodes)]
