"""The search for a slow node or link: which groups of nodes to measure next, and what it means.

Pure: a search is a generator that yields rounds and is sent the times of their groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from statistics import median, quantiles

from hpckit.features.interconnect.model import NodeGroupTime, SearchMode, SlowLink, SlowParts
from hpckit.planning.preflight.peers import Group, Round, group_pairs_into_rounds

GroupTimes = Sequence[NodeGroupTime]
Search = Generator[Round, GroupTimes, SlowParts]

MOST_PAIRED = 64
"""Up to this many nodes every pair is measured: 63 rounds, each shorter than a second."""
_PAIRED_AT_LAST = 3
"""Halves of fewer than four nodes would have a group of one, which exchanges nothing."""
_FEWEST_AT_ONCE = 6
"""Three pairs at once: of fewer, nothing tells which one is slow."""
_AGAIN = 2
_MOST_ALONE = 2
"""Pairs for each node: the pairs of two slow nodes."""
_REFERENCES = 4
"""The last suspects are measured with as many other nodes, and this many more: of all pairs, more
than a quarter are then healthy, which shows how fast a pair should be."""


def start_slow_node_search(nodes: int, mode: SearchMode) -> Search:
    """Return a search over the nodes 0 to `nodes` - 1.

    ```python
    search = start_slow_node_search(4, SearchMode.pairs)
    groups = next(search)  # ((0, 3), (1, 2))
    groups = search.send([measured(group) for group in groups])
    ```
    """
    halves = mode is SearchMode.bisect or (mode is SearchMode.auto and nodes > MOST_PAIRED)
    return _search_by_halves(range(nodes)) if halves else _search_by_pairs(range(nodes))


def _search_by_pairs(nodes: Sequence[int]) -> Search:
    """Measure every pair once, and the slow ones twice again: slow once may be a disturbance.

    Again means alone, so that no other pair disturbs it; unless there are too many.
    """
    most_alone = _MOST_ALONE * len(nodes)
    return find_slow_nodes_and_links(*(yield from _measure_pairs(list_round_robin_rounds(nodes), most_alone)))


def _measure_pairs(
    rounds: Sequence[Round], most_alone: int = 0
) -> Generator[Round, GroupTimes, tuple[dict[Group, float], float]]:
    """Return the times of pairs, and from which factor on one is slow; slow ones measured again.

    Up to `most_alone` slow pairs are measured one after the other, more of them at once.
    """
    seen: list[NodeGroupTime] = []
    for pairs in rounds:
        seen += yield pairs
    factor = estimate_slowness_threshold(seen)
    times = {group.nodes: group.seconds for group in seen}
    for _ in range(_AGAIN):
        slow = find_slow_pairs(times, factor)
        alone = len(slow) <= most_alone
        for again in [(pair,) for pair in slow] if alone else group_pairs_into_rounds(slow):
            for each in (yield again):
                times[each.nodes] = min(times[each.nodes], each.seconds)
    return times, factor


def _search_by_halves(nodes: Sequence[int]) -> Search:
    """Measure all nodes in pairs at once, then all pairs of those whose pair was slow.

    If no pair was, a link may be slow: then halves are measured, and the halves of the slow one. If
    both are alike, the link may lead from one to the other. A slow node is found whatever its
    speed. A slow link is found if it is one of the first pairs, or if a message takes longer over
    it than all messages of a node of its group take over others.
    """
    if len(nodes) <= _PAIRED_AT_LAST:
        return (yield from _search_by_pairs(nodes))
    suspects: list[int] = []
    if len(nodes) >= _FEWEST_AT_ONCE:
        suspects = yield from _find_nodes_of_slow_pairs(nodes)
    if not suspects:
        suspects = yield from _find_nodes_of_slow_link(nodes)
    if not suspects:
        return SlowParts()
    suspects = suspects[: (MOST_PAIRED - _REFERENCES) // 2]
    others = [node for node in nodes if node not in suspects][: len(suspects) + _REFERENCES]
    return (yield from _search_by_pairs(sorted([*suspects, *others])))


def _find_nodes_of_slow_pairs(nodes: Sequence[int]) -> Generator[Round, GroupTimes, list[int]]:
    """Return the nodes of pairs that are slow in a round of all nodes, also when measured again."""
    pairs = [(nodes[place], nodes[place + 1]) for place in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        pairs.append((nodes[0], nodes[-1]))
    times, factor = yield from _measure_pairs(group_pairs_into_rounds(pairs))
    return sorted({node for pair in find_slow_pairs(times, factor) for node in pair})


def _find_nodes_of_slow_link(nodes: Sequence[int]) -> Generator[Round, GroupTimes, list[int]]:
    """Return the nodes between which a link is slow, with up to two others; none if none is."""
    suspects = list(nodes)
    while len(suspects) > _PAIRED_AT_LAST:
        half = len(suspects) // 2
        left, right = suspects[:half], suspects[half:]
        slow = yield from _find_slower_group(left, right)
        if slow is None:
            return (yield from _find_link_across_halves(left, right))
        suspects = slow
    return suspects


def _find_link_across_halves(
    left: Sequence[int], right: Sequence[int]
) -> Generator[Round, GroupTimes, list[int]]:
    """Return the nodes between which a slow link leads from one half to the other; none if none."""
    while len(left) + len(right) > _PAIRED_AT_LAST:
        halves = [(side[: (len(side) + 1) // 2], side[(len(side) + 1) // 2 :]) for side in (left, right)]
        (a, b), (c, d) = halves
        found = None
        for first, second in (((a, c), (b, d)), ((a, d), (b, c))):
            slow = yield from _find_slower_group([*first[0], *first[1]], [*second[0], *second[1]])
            if slow is not None:
                found = first if slow == [*first[0], *first[1]] else second
                break
        if found is None:
            return []
        left, right = found
    return [*left, *right]


def _find_slower_group(
    left: Sequence[int], right: Sequence[int]
) -> Generator[Round, GroupTimes, list[int] | None]:
    """Measure two groups at once; return the slower one, None if they are alike, twice."""
    groups = tuple(tuple(sorted(half)) for half in (left, right) if len(half) > 1)
    if not groups:
        return None
    if len(groups) == 1:
        return list(left if len(left) > 1 else right)
    each = [0.0, 0.0]
    for attempt in range(2):
        seen = yield groups
        times = {measured.nodes: measured.seconds for measured in seen}
        # In a group of n each node exchanges n-1 messages.
        now = [times[group] / (len(group) - 1) for group in groups]
        each = now if attempt == 0 else [min(pair) for pair in zip(each, now, strict=True)]
        if max(each) <= estimate_slowness_threshold(seen) * min(each):
            return None
    return list(left if each[0] > each[1] else right)


def list_round_robin_rounds(nodes: Sequence[int]) -> list[Round]:
    """Return the rounds of a round robin (circle method): n-1 of n/2 pairs, n if n is odd.

    Example: `tournament([0, 1, 2, 3])` has three rounds of two pairs each.
    """
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    rounds: list[Round] = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        meetings = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(
            tuple(
                (min(one, other), max(one, other))
                for one, other in meetings
                if one is not None and other is not None
            )
        )
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


SLOW = 1.5
"""A pair is slow that takes at least this many times what healthy pairs take. Our judgement: pairs
of a quiet network differ by a tenth, and links that are worth a report by a half. Before a training
(planning.preflight.peers) a node is judged by the best of its two to four pairs: so few cannot tell
nodes from links. The rule here would miss slow nodes there that lie next to each other."""
_OF_SPREAD = 3.0
"""Where repeats of the same exchange differ, more is needed: this many times their spread."""
_FEWEST_PAIRS = 3
"""Of two nodes nothing else tells which is slow, or how fast their link should be."""
_OF_A_NODE = 0.75
"""The share of a node's pairs that are slow if the node is, and not single links of it."""


def estimate_slowness_threshold(groups: Iterable[NodeGroupTime]) -> float:
    """Return how many times longer than usual is slow, on a network as noisy as these groups.

    The slower half of them does not count: what makes them slow may make them uneven.
    """
    by_time = sorted(groups, key=lambda group: group.seconds / max(1, len(group.nodes) - 1))
    faster = by_time[: (len(by_time) + 1) // 2]
    return max(SLOW, 1 + _OF_SPREAD * median(group.spread for group in faster)) if faster else SLOW


def estimate_healthy_pair_time(times: Mapping[Group, float]) -> float:
    """Return what a healthy pair takes: the time below which a quarter of all pairs are.

    The median would be a slow one where a node of three is slow: two of three pairs.
    """
    values = sorted(times.values())
    if len(values) < 4:  # noqa: PLR2004  # a quarter of three is none
        return values[0]
    return quantiles(values, n=4, method="inclusive")[0]


def find_slow_pairs(times: Mapping[Group, float], factor: float = SLOW) -> list[Group]:
    """Return the pairs that are slow, among at least three."""
    if len(times) < _FEWEST_PAIRS:
        return []
    usual = estimate_healthy_pair_time(times)
    return [pair for pair, seconds in times.items() if seconds > factor * usual]


def find_slow_nodes_and_links(times: Mapping[Group, float], factor: float = SLOW) -> SlowParts:
    """Return slow nodes (their pairs are slow) and slow links (pairs of nodes that are not).

    A pair is slow that takes more than `factor` times what is usual.

    Example: of four nodes, if (0, 1), (0, 2) and (0, 3) are slow, node 0 is.
    """
    if not times:
        return SlowParts()
    slow, usual = find_slow_pairs(times, factor), estimate_healthy_pair_time(times)
    if not slow:
        return SlowParts(usual_s=usual)
    nodes: list[int] = []
    while (worst := _find_node_with_slow_pairs(slow, times, nodes)) is not None:
        nodes.append(worst)
    links = [SlowLink(first=pair[0], second=pair[1]) for pair in _drop_pairs_with_nodes(slow, nodes)]
    return SlowParts(
        nodes=tuple(sorted(nodes)),
        links=tuple(sorted(links, key=lambda link: (link.first, link.second))),
        usual_s=usual,
        factor=median(times[pair] for pair in slow) / usual,
    )


def _find_node_with_slow_pairs(
    slow: Collection[Group], times: Collection[Group], named: Collection[int]
) -> int | None:
    counts = Counter(node for pair in _drop_pairs_with_nodes(slow, named) for node in pair)
    everyone = Counter(node for pair in _drop_pairs_with_nodes(times, named) for node in pair)
    for node, count in counts.most_common(1):
        if count >= 2 and count >= _OF_A_NODE * everyone[node]:  # noqa: PLR2004  # one is a link
            return node
    return None


def _drop_pairs_with_nodes(pairs: Collection[Group], nodes: Collection[int]) -> list[Group]:
    return [pair for pair in pairs if not set(pair) & set(nodes)]
