"""What is wrong with a node beside the others: versions, clocks, speeds, pairs. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from hpckit.model.environment.facts import EnvironmentFacts, GpuFacts
from hpckit.model.environment.health import DeviceSpeed, HealthFinding, HealthReport, HealthVerdict
from hpckit.values import replace

LEAST_PEERS = 3
"""Of two that differ nothing says which one is wrong."""
SLOW_CRIT = 0.6
SLOW_WARN = 0.85
"""Share of the median speed of a device's peers. Published spreads of healthy GPUs of one kind are
below 10 percent; a synchronous run is as slow as its slowest device."""
_CLOCK_WARN_S = 2.0
_NTP = "its time service (NTP) does not work"

_VERSIONS: Mapping[str, Callable[[EnvironmentFacts], str | None]] = {
    "hpckit": lambda facts: facts.python.hpckit,
    "Python": lambda facts: facts.python.version,
    "torch": lambda facts: facts.torch.version,
    "torch CUDA": lambda facts: facts.torch.cuda,
    "torch NCCL": lambda facts: facts.torch.nccl,
    "driver": lambda facts: facts.driver.version,
}
_MUST_AGREE = frozenset({"hpckit", "torch", "torch CUDA", "torch NCCL"})

T = TypeVar("T")
Found = Iterator[tuple[str, HealthFinding]]
"""Findings, each with the name of its node."""


def find_peer_differences(reports: Sequence[HealthReport], clock_s: float) -> Found:
    """Yield what differs from most other nodes; nothing about nodes that did not answer."""
    answered = [report for report in reports if report.health is not None]
    for check, read in _VERSIONS.items():
        values = {
            report.node: value
            for report in answered
            if report.health is not None and (value := read(report.health.environment)) is not None
        }
        yield from _find_outlier_values(check, values, critical=check in _MUST_AGREE)
    yield from _find_wrong_clocks(answered, clock_s)
    yield from _find_compute_device_problems(answered)
    yield from find_nodes_slow_with_neighbours(reports)


def find_slow_peers(
    rates: Mapping[T, float], warn: float, crit: float
) -> Iterator[tuple[T, float, HealthVerdict]]:
    """Yield who is slow: below the share `warn` of the median, with its share, and the verdict."""
    usual = statistics.median(rates.values()) if len(rates) >= LEAST_PEERS else 0.0
    for who, rate in rates.items():
        if rate < warn * usual:
            verdict = HealthVerdict.crit if rate < crit * usual else HealthVerdict.warn
            yield who, rate / usual, verdict


def _find_outlier_values(check: str, values: Mapping[str, str], *, critical: bool) -> Found:
    usual, most = Counter(values.values()).most_common(1)[0] if values else ("", 0)
    if most == len(values):
        return
    for node, value in values.items():
        if 2 * most <= len(values):
            words = f"{check} is {value or 'none'} on {node}, and the nodes differ"
            yield node, HealthFinding(check, HealthVerdict.warn, words, _EQUAL)
        elif value != usual:
            verdict = HealthVerdict.crit if critical else HealthVerdict.warn
            words = f"{check} is {value or 'none'} on {node}, and {usual or 'none'} on most nodes"
            yield node, HealthFinding(check, verdict, words, _EQUAL)


_EQUAL = "ranks of one run need the same software: name a Python on a shared file system"


def _find_wrong_clocks(reports: Sequence[HealthReport], clock_s: float) -> Found:
    # If the supervisor's own clock was set meanwhile, nothing is known.
    known = [
        report
        for report in reports
        if math.isfinite(report.ahead_least_s)
        and math.isfinite(report.ahead_most_s)
        and report.ahead_least_s <= report.ahead_most_s
    ]
    if len(known) < 2:  # noqa: PLR2004  # nothing to compare with
        return
    # The supervisor's own clock may be the one that is wrong: what counts is where most agree.
    usual, agreeing = _find_common_clock_offsets(known)
    most = 2 * agreeing > len(known)
    for value in known:
        if most:
            surely = min((_clock_seconds_surely_ahead(value, offset, offset) for offset in usual), key=abs)
        else:
            others = ((each.ahead_least_s, each.ahead_most_s) for each in known)
            surely = max((_clock_seconds_surely_ahead(value, *bounds) for bounds in others), key=abs)
        if abs(surely) < min(_CLOCK_WARN_S, clock_s):
            continue
        crit = most and len(known) >= LEAST_PEERS and abs(surely) > clock_s
        side = "ahead of" if surely > 0 else "behind"
        whose = "those of the other nodes" if most else "that of another node"
        words = f"the clock of {value.node} is {abs(surely):.0f} s {side} {whose}"
        verdict = HealthVerdict.crit if crit else HealthVerdict.warn
        yield (value.node, HealthFinding("clock", verdict, words, _NTP))


def _find_common_clock_offsets(reports: Sequence[HealthReport]) -> tuple[list[float], int]:
    """Return the differences to the supervisor's clock that most nodes may have, and how many may.

    A node that took long to answer may agree with several: none of these is odd then.
    """
    ends = sorted({end for report in reports for end in (report.ahead_least_s, report.ahead_most_s)})
    counts = [sum(report.ahead_least_s <= end <= report.ahead_most_s for report in reports) for end in ends]
    best = max(counts)
    return [end for end, count in zip(ends, counts, strict=True) if count == best], best


def _clock_seconds_surely_ahead(one: HealthReport, least: float, most: float) -> float:
    """Return how far a clock is surely ahead of others within these bounds; below 0 behind them."""
    ahead = one.ahead_least_s - most
    return ahead if ahead > 0 else min(one.ahead_most_s - least, 0.0)


def _find_compute_device_problems(reports: Sequence[HealthReport]) -> Found:
    devices = [
        (report.node, speed)
        for report in reports
        if report.health is not None
        for speed in report.health.speeds
    ]
    for name in dict.fromkeys(speed.name for _, speed in devices if speed.name):
        alike = [(node, speed) for node, speed in devices if speed.name == name]
        yield from _find_slow_devices(alike)
        yield from _find_slow_pcie_links(alike)
        yield from _find_wrong_compute_results(alike)
    for node, speed in devices:
        if speed.problem:
            words = f"{speed.device} on {node} could not compute: {speed.problem}"
            yield node, _build_device_finding(speed, "compute", HealthVerdict.warn, words, "")


_RATES: Mapping[str, tuple[str, Callable[[DeviceSpeed], float | None]]] = {
    "compute": ("multiplies matrices", lambda one: one.matmul_flops),
    "memory bandwidth": ("copies memory", lambda one: one.copy_bytes_s),
    "host to device": ("receives data from its host", lambda one: one.to_device_bytes_s),
    "device to host": ("sends data to its host", lambda one: one.to_host_bytes_s),
    "all-reduce": ("all-reduces with other GPUs of its node", lambda one: one.all_reduce_bytes_s),
}


def _find_slow_devices(alike: Sequence[tuple[str, DeviceSpeed]]) -> Found:
    for check, (words, read) in _RATES.items():
        found = {place: read(one) for place, (_, one) in enumerate(alike)}
        rates = {place: rate for place, rate in found.items() if rate is not None}
        for place, share, verdict in find_slow_peers(rates, SLOW_WARN, SLOW_CRIT):
            node, one = alike[place]
            told = f"{one.device} on {node} {words} at {share:.0%} of the speed of its peers"
            yield node, _build_device_finding(one, check, verdict, told, _SLOW)


_SLOW = "heat, a power limit, another job or a broken link: every rank would wait for it"


def _find_slow_pcie_links(alike: Sequence[tuple[str, DeviceSpeed]]) -> Found:
    """Yield links that are below what GPU and host are able to, while data goes over them.

    Peers that are faster show that it is not the site's usual state.
    """
    for words, read in _LINKS:
        links = [(node, one, *read(one.pcie)) for node, one in alike if one.pcie is not None]
        known = [(node, one, now, able) for node, one, now, able in links if now and able]
        usual = max((now for _, _, now, _ in known), default=0)
        for node, one, now, able in known:
            if now < able:
                verdict = HealthVerdict.crit if now < usual else HealthVerdict.warn
                told = f"{one.device} on {node} {words.format(now=now, able=able)} under load"
                yield node, _build_device_finding(one, "pcie", verdict, told, _LINK)


_LINKS: Sequence[tuple[str, Callable[[GpuFacts], tuple[int | None, int | None]]]] = (
    (
        "runs PCIe at generation {now} of {able}",
        lambda link: (link.pcie_generation, link.pcie_generation_max),
    ),
    ("uses {now} of {able} lanes of PCIe", lambda link: (link.pcie_width, link.pcie_width_max)),
)
_LINK = "its card or riser is loose, or its slot is configured slower: tell the administrators"


def _find_wrong_compute_results(alike: Sequence[tuple[str, DeviceSpeed]]) -> Found:
    told = [(node, one) for node, one in alike if one.checksum is not None]
    for node, one in told:
        if one.repeats is False:
            words = f"{one.device} on {node} computed the same product twice, with two results"
            yield node, _build_device_finding(one, "checksum", HealthVerdict.crit, words, _WRONG)
    usual, most = Counter(one.checksum for _, one in told).most_common(1)[0] if told else ("", 0)
    if len(told) < LEAST_PEERS or 2 * most <= len(told):
        return
    for node, one in told:
        if one.checksum != usual and one.repeats is not False:
            words = f"{one.device} on {node} computes a different product than its peers"
            yield node, _build_device_finding(one, "checksum", HealthVerdict.crit, words, _WRONG)


_WRONG = "its results cannot be trusted (silent data corruption): tell the administrators"


def _build_device_finding(
    one: DeviceSpeed, check: str, verdict: HealthVerdict, message: str, hint: str
) -> HealthFinding:
    gpu = None if one.device == "cpu" else one.device
    return HealthFinding(check, verdict, message, hint, gpu)


Group = tuple[int, ...]
Round = tuple[Group, ...]
"""Groups without a common node, which are measured at the same time."""

_CRIT, _WARN = 0.5, 0.67
"""Share of the usual speed. Pairs of a quiet network differ by a tenth; many pairs of one run add
at once, so that a switch may be shared unevenly."""
_HINT = (
    "a slow or broken link: `hpckit bench comm --find-slow pairs` on these nodes shows which; "
    "tell the administrators"
)


def plan_neighbour_rounds(count: int) -> tuple[Round, ...]:
    """Return the rounds in which each of `count` nodes meets its two neighbours once.

    Pairs of a round have no node in common, and can be measured at the same time. The last node is
    a neighbour of the first. Empty for fewer than three nodes.

    Example: `plan_neighbour_rounds(4)` is `(((0, 1), (2, 3)), ((0, 3), (1, 2)))`.
    """
    if count < LEAST_PEERS:
        return ()
    ring = [(place, place + 1) for place in range(count - 1)] + [(0, count - 1)]
    even, odd = ring[0 : count - 1 : 2], ring[1 : count - 1 : 2]
    return tuple(group_pairs_into_rounds([*even, *odd, ring[-1]]))


def group_pairs_into_rounds(pairs: Sequence[Group]) -> list[Round]:
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


def reorder_with_new_neighbours(count: int) -> tuple[int, ...]:
    """Return an order of `count` nodes in which nearly all have two other neighbours.

    Example: `reorder_with_new_neighbours(6)` is `(0, 2, 4, 1, 5, 3)`.
    """
    odd = [*range(1, count, 2)]
    if count % 2 == 0 and len(odd) > 1:
        # The last one meets the first, whose neighbours are 1 and the last number.
        odd.append(odd.pop(1))
    return (*range(0, count, 2), *odd)


def are_pair_rates_uneven(reports: Sequence[HealthReport]) -> bool:
    """Return whether some pairs are much slower than others, whichever are usual."""
    rates = [each.bytes_s for report in reports for each in report.pairs if each.bytes_s is not None]
    return bool(rates) and min(rates) < _WARN * max(rates)


def find_nodes_slow_with_neighbours(reports: Sequence[HealthReport]) -> Found:
    """Yield nodes that are slow with all their neighbours, or reach none that others reach.

    Each node adds with its two neighbours in the order of nodes; if some are slow, with two others
    too. What counts is the fastest: a healthy node between two slow ones is fast with the others.
    """
    rates = {
        report.node: [each.bytes_s for each in report.pairs if each.bytes_s is not None] for report in reports
    }
    fastest = {node: max(each) for node, each in rates.items() if each}
    for report in reports:
        if report.node not in fastest:
            partners = " and ".join(each.partner for each in report.pairs)
            # A partner that reached nobody else may be what is broken.
            if any(each.partner in fastest for each in report.pairs):
                problem = next((each.problem for each in report.pairs if each.problem), "no answer")
                words = f"{report.node} could not exchange data with {partners}: {problem}"
                yield report.node, HealthFinding("network", HealthVerdict.crit, words, _HINT)
    for node, share, verdict in find_slow_peers(fastest, _WARN, _CRIT):
        words = f"{node} all-reduces with other nodes at {share:.0%} of the speed of its peers"
        yield node, HealthFinding("network", verdict, words, _HINT)


def keep_faster_pair_rates(
    reports: Sequence[HealthReport], again: Sequence[HealthReport]
) -> list[HealthReport]:
    """Return the reports with all pairs of two measurements, of each the better rate."""
    more = {report.node: report.pairs for report in again}
    found = []
    for report in reports:
        pairs = {each.partner: each for each in report.pairs}
        for each in more.get(report.node, ()):
            pairs[each.partner] = max(
                pairs.get(each.partner, each),
                each,
                key=lambda pair: -1.0 if pair.bytes_s is None else pair.bytes_s,
            )
        found.append(replace(report, pairs=tuple(pairs.values())))
    return found
