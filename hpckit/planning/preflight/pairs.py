"""Which nodes add with each other at an inspection, and what their speeds say of a node. Pure.

Each node adds with its two neighbours in the order of nodes; if some are slow, with two others too.
What counts is the fastest: a healthy node between two slow ones is fast with the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from hpckit.model.preflight.health import HealthReport, PairRate
from hpckit.model.preflight.verdict import HealthFinding, HealthVerdict
from hpckit.values import replace

Group = tuple[int, ...]
Round = tuple[Group, ...]
"""Groups without a common node, which are measured at the same time."""

FEWEST = 3
"""Of two nodes nothing says which one is slow."""
_CRIT, _WARN = 0.5, 0.67
"""Share of the usual speed. Pairs of a quiet network differ by a tenth; many pairs of one run add
at once, so that a switch may be shared unevenly."""
_CHECK = "network"
_HINT = (
    "a slow or broken link: `hpckit bench comm --find-slow pairs` on these nodes shows which; "
    "tell the administrators"
)


def neighbour_rounds(count: int) -> tuple[Round, ...]:
    """Return the rounds in which each of `count` nodes meets its two neighbours once.

    Pairs of a round have no node in common, and can be measured at the same time. The last node is
    a neighbour of the first. Empty for fewer than three nodes.

    Example: `neighbour_rounds(4)` is `(((0, 1), (2, 3)), ((0, 3), (1, 2)))`.
    """
    if count < FEWEST:
        return ()
    ring = [(place, place + 1) for place in range(count - 1)] + [(0, count - 1)]
    even, odd = ring[0 : count - 1 : 2], ring[1 : count - 1 : 2]
    return tuple(rounds_of([*even, *odd, ring[-1]]))


def rounds_of(pairs: Sequence[Group]) -> list[Round]:
    """Return rounds that have each of these pairs once, and no node twice in a round."""
    rounds: list[list[Group]] = []
    for pair in pairs:
        for one in rounds:
            if not any(set(pair) & set(other) for other in one):
                one.append(pair)
                break
        else:
            rounds.append([pair])
    return [tuple(one) for one in rounds]


def other_order(count: int) -> tuple[int, ...]:
    """Return an order of `count` nodes in which nearly all have two other neighbours.

    Example: `other_order(6)` is `(0, 2, 4, 1, 5, 3)`.
    """
    odd = [*range(1, count, 2)]
    if count % 2 == 0 and len(odd) > 1:
        # The last one meets the first, whose neighbours are 1 and the last number.
        odd.append(odd.pop(1))
    return (*range(0, count, 2), *odd)


def is_uneven(reports: Sequence[HealthReport]) -> bool:
    """Return whether some pairs are much slower than others, whichever are usual."""
    rates = [
        each.bytes_s for report in reports for each in report.pairs if each.bytes_s is not None
    ]
    return bool(rates) and min(rates) < _WARN * max(rates)


def pair_findings(reports: Sequence[HealthReport]) -> Iterator[tuple[str, HealthFinding]]:
    """Yield nodes that are slow with all their neighbours, or reach none that others reach."""
    fastest = _fastest(reports)
    usual = statistics.median(fastest.values()) if len(fastest) >= FEWEST else None
    for report in reports:
        rate = fastest.get(report.node)
        if rate is None:
            partners = " and ".join(each.partner for each in report.pairs)
            # A partner that reached nobody else may be what is broken.
            if any(each.partner in fastest for each in report.pairs):
                problem = next((each.problem for each in report.pairs if each.problem), "no answer")
                words = f"{report.node} could not exchange data with {partners}: {problem}"
                yield report.node, _finding(HealthVerdict.crit, words)
        elif usual is not None and rate < _WARN * usual:
            verdict = HealthVerdict.crit if rate < _CRIT * usual else HealthVerdict.warn
            share = f"{rate / usual:.0%} of the speed of its peers"
            words = f"{report.node} adds with other nodes at {share}"
            yield report.node, _finding(verdict, words)


def faster_pairs(
    reports: Sequence[HealthReport], again: Sequence[HealthReport]
) -> list[HealthReport]:
    """Return the reports with all pairs of two measurements, of each the better rate."""
    more = {report.node: report.pairs for report in again}
    found = []
    for report in reports:
        pairs = {each.partner: each for each in report.pairs}
        for each in more.get(report.node, ()):
            pairs[each.partner] = max(pairs.get(each.partner, each), each, key=_rate)
        found.append(replace(report, pairs=tuple(pairs.values())))
    return found


def _rate(pair: PairRate) -> float:
    return -1.0 if pair.bytes_s is None else pair.bytes_s


def _fastest(reports: Sequence[HealthReport]) -> Mapping[str, float]:
    """Return the best rate of each node that has one."""
    rates = {
        report.node: [each.bytes_s for each in report.pairs if each.bytes_s is not None]
        for report in reports
    }
    return {node: max(each) for node, each in rates.items() if each}


def _finding(verdict: HealthVerdict, words: str) -> HealthFinding:
    return HealthFinding(check=_CHECK, verdict=verdict, message=words, hint=_HINT)
