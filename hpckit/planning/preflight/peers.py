"""What is wrong with a node by comparison with the others: versions, clocks, speeds. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from hpckit.model.environment.facts import EnvironmentFacts
from hpckit.model.preflight.health import DeviceSpeed, HealthReport, PcieLink
from hpckit.model.preflight.verdict import HealthFinding, HealthVerdict

_LEAST_PEERS = 3
"""Of two that differ nothing says which one is wrong."""
SLOW_CRIT = 0.6
SLOW_WARN = 0.85
"""Share of the median speed of a device's peers. Published spreads of healthy GPUs of one kind are
below 10 percent; a synchronous run is as slow as its slowest device."""
_CLOCK_WARN_S = 2.0

_VERSIONS: Mapping[str, Callable[[EnvironmentFacts], str | None]] = {
    "hpckit": lambda facts: facts.python.hpckit,
    "Python": lambda facts: facts.python.version,
    "torch": lambda facts: facts.torch.version,
    "torch CUDA": lambda facts: facts.torch.cuda,
    "torch NCCL": lambda facts: facts.torch.nccl,
    "driver": lambda facts: facts.driver.version,
}
_MUST_AGREE = frozenset({"hpckit", "torch", "torch CUDA", "torch NCCL"})

Found = Iterator[tuple[str, HealthFinding]]
"""Findings, each with the name of its node."""


def peer_findings(reports: Sequence[HealthReport], clock_s: float) -> Found:
    """Yield what differs from most other nodes; nothing of nodes that did not answer."""
    answered = [report for report in reports if report.health is not None]
    for check, read in _VERSIONS.items():
        values = {
            report.node: value
            for report in answered
            if report.health is not None and (value := read(report.health.environment)) is not None
        }
        yield from _odd_ones(check, values, critical=check in _MUST_AGREE)
    yield from _clocks(answered, clock_s)
    yield from _speeds(answered)


def _odd_ones(check: str, values: Mapping[str, str], *, critical: bool) -> Found:
    usual, most = Counter(values.values()).most_common(1)[0] if values else ("", 0)
    if most == len(values):
        return
    for node, value in values.items():
        if 2 * most <= len(values):
            words = f"{check} is {value or 'none'} on {node}, and the nodes differ"
            yield node, _finding(check, HealthVerdict.warn, words, _EQUAL)
        elif value != usual:
            verdict = HealthVerdict.crit if critical else HealthVerdict.warn
            words = f"{check} is {value or 'none'} on {node}, and {usual or 'none'} on most nodes"
            yield node, _finding(check, verdict, words, _EQUAL)


_EQUAL = "ranks of one run need the same software: name a Python on a shared file system"


def _clocks(reports: Sequence[HealthReport], clock_s: float) -> Found:
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
    usual, agreeing = _common_offsets(known)
    most = 2 * agreeing > len(known)
    for value in known:
        if most:
            surely = min((_ahead(value, offset, offset) for offset in usual), key=abs)
        else:
            others = ((each.ahead_least_s, each.ahead_most_s) for each in known)
            surely = max((_ahead(value, *bounds) for bounds in others), key=abs)
        if abs(surely) < min(_CLOCK_WARN_S, clock_s):
            continue
        crit = most and len(known) >= _LEAST_PEERS and abs(surely) > clock_s
        side = "ahead of" if surely > 0 else "behind"
        whose = "those of the other nodes" if most else "that of another node"
        words = f"the clock of {value.node} is {abs(surely):.0f} s {side} {whose}"
        verdict = HealthVerdict.crit if crit else HealthVerdict.warn
        yield value.node, _finding("clock", verdict, words, "its time service (NTP) does not work")


def _common_offsets(reports: Sequence[HealthReport]) -> tuple[list[float], int]:
    """Return the differences to the supervisor's clock that most nodes may have, and how many may.

    A node that took long to answer may agree with several: none of these is odd then.
    """
    ends = sorted(
        {end for report in reports for end in (report.ahead_least_s, report.ahead_most_s)}
    )
    counts = [
        sum(report.ahead_least_s <= end <= report.ahead_most_s for report in reports)
        for end in ends
    ]
    best = max(counts)
    return [end for end, count in zip(ends, counts, strict=True) if count == best], best


def _ahead(one: HealthReport, least: float, most: float) -> float:
    """Return how far a clock is surely ahead of others within these bounds; below 0 behind them."""
    ahead = one.ahead_least_s - most
    return ahead if ahead > 0 else min(one.ahead_most_s - least, 0.0)


def _speeds(reports: Sequence[HealthReport]) -> Found:
    devices = [
        (report.node, speed)
        for report in reports
        if report.health is not None
        for speed in report.health.speeds
    ]
    for name in dict.fromkeys(speed.name for _, speed in devices if speed.name):
        alike = [(node, speed) for node, speed in devices if speed.name == name]
        yield from _slow_ones(alike)
        yield from _slow_links(alike)
        yield from _wrong_results(alike)
    for node, speed in devices:
        if speed.problem:
            words = f"{speed.device} on {node} could not compute: {speed.problem}"
            yield node, _device(speed, "compute", HealthVerdict.warn, words, "")


_RATES: Mapping[str, tuple[str, Callable[[DeviceSpeed], float | None]]] = {
    "compute": ("multiplies matrices", lambda one: one.matmul_flops),
    "memory bandwidth": ("copies memory", lambda one: one.copy_bytes_s),
    "host to device": ("receives data from its host", lambda one: one.to_device_bytes_s),
    "device to host": ("sends data to its host", lambda one: one.to_host_bytes_s),
    "all-reduce": ("adds with the other GPUs of its node", lambda one: one.all_reduce_bytes_s),
}


def _slow_ones(alike: Sequence[tuple[str, DeviceSpeed]]) -> Found:
    for check, (words, read) in _RATES.items():
        rates = [(node, one, rate) for node, one in alike if (rate := read(one)) is not None]
        if len(rates) < _LEAST_PEERS:
            continue
        usual = statistics.median(rate for _, _, rate in rates)
        if not usual:
            continue
        for node, one, rate in rates:
            share = rate / usual
            if share < SLOW_WARN:
                verdict = HealthVerdict.crit if share < SLOW_CRIT else HealthVerdict.warn
                told = f"{one.device} on {node} {words} at {share:.0%} of the speed of its peers"
                yield node, _device(one, check, verdict, told, _SLOW)


_SLOW = "heat, a power limit, another job or a broken link: every rank would wait for it"


def _slow_links(alike: Sequence[tuple[str, DeviceSpeed]]) -> Found:
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
                yield node, _device(one, "pcie", verdict, told, _LINK)


_LINKS: Sequence[tuple[str, Callable[[PcieLink], tuple[int | None, int | None]]]] = (
    (
        "runs PCIe at generation {now} of {able}",
        lambda link: (link.generation, link.generation_max),
    ),
    ("uses {now} of {able} lanes of PCIe", lambda link: (link.width, link.width_max)),
)
_LINK = "its card or riser sits badly, or the slot is set to less: tell the administrators"


def _wrong_results(alike: Sequence[tuple[str, DeviceSpeed]]) -> Found:
    told = [(node, one) for node, one in alike if one.checksum is not None]
    for node, one in told:
        if one.repeats is False:
            words = f"{one.device} on {node} computed the same product twice, with two results"
            yield node, _device(one, "checksum", HealthVerdict.crit, words, _WRONG)
    usual, most = Counter(one.checksum for _, one in told).most_common(1)[0] if told else ("", 0)
    if len(told) < _LEAST_PEERS or 2 * most <= len(told):
        return
    for node, one in told:
        if one.checksum != usual and one.repeats is not False:
            words = f"{one.device} on {node} computes another product than its peers"
            yield node, _device(one, "checksum", HealthVerdict.crit, words, _WRONG)


_WRONG = "its results cannot be trusted (silent data corruption): tell the administrators"


def _device(
    one: DeviceSpeed, check: str, verdict: HealthVerdict, message: str, hint: str
) -> HealthFinding:
    gpu = None if one.device == "cpu" else one.device
    return HealthFinding(check=check, verdict=verdict, message=message, hint=hint, gpu=gpu)


def _finding(check: str, verdict: HealthVerdict, message: str, hint: str) -> HealthFinding:
    return HealthFinding(check=check, verdict=verdict, message=message, hint=hint)
