"""Sums up the trace of one rank: compute, communication, overlap, copies, idle, the top. Pure.

Reads events of the Chrome trace format as torch's profiler writes them (`ts` and `dur` in
microseconds). On a GPU its kernels count, whatever stream they ran on; on CPUs the operators of all
threads, and the collectives of gloo.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from hpckit.model.plain import is_within_limit
from hpckit.model.profile import TopEntry, TraceSummary
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field

Interval = tuple[float, float]


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the points that lie in any of these intervals; those without length are left out."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def intersect_intervals(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return the points that lie in both sets."""
    found: list[Interval] = []
    one = other = 0
    while one < len(first) and other < len(second):
        begin = max(first[one][0], second[other][0])
        end = min(first[one][1], second[other][1])
        if begin < end:
            found.append((begin, end))
        if first[one][1] < second[other][1]:
            one += 1
        else:
            other += 1
    return found


def sum_interval_lengths(intervals: Sequence[Interval]) -> float:
    """Return the length of a set."""
    return sum(end - begin for begin, end in intervals)


MOST_TOP = 50
"""Entries that are kept of the top."""

_STEP = "ProfilerStep#"
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
_KERNEL_OF_COMMUNICATION = lazy_pattern(r"(nccl|rccl|mscclKernel)", re.IGNORECASE)
_COLLECTIVE = lazy_pattern(r"^(c10d::|_?c10d_functional::|(gloo|nccl|mpi|ucc):)")
_SECOND = 1e-6
"""One unit of a trace's times."""
_LATEST = 1e18


class TraceError(ValueError):
    """Raised for a trace that holds nothing to sum up."""


_Totals = defaultdict[str, list[float]]
"""The seconds of each call, by its name."""


@dataclass(slots=True)
class _Trace:
    """What counts of a trace, by its kind."""

    steps: list[Interval] = field(default_factory=list)
    kernels: list[Call] = field(default_factory=list)
    copies: list[Call] = field(default_factory=list)
    threads: dict[object, list[Call]] = field(default_factory=dict)
    events: int = 0

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Add an event; those without a usable time are left out."""
        call = _event_to_call(event)
        if call is None:
            return
        category = event.get("cat")
        if call.name.startswith(_STEP):
            if category == "user_annotation":
                self.steps.append((call.begin, call.end))
        elif category == "kernel":
            call.communicates = bool(_KERNEL_OF_COMMUNICATION.match(call.name))
            self.kernels.append(call)
        elif category in _COPIES:
            self.copies.append(call)
        elif category == "cpu_op" or (category == "user_annotation" and call.communicates):
            track = (str(event.get("pid")), str(event.get("tid")))
            self.threads.setdefault(track, []).append(call)
        else:
            return
        self.events += 1


def summarise_trace(events: Iterable[Mapping[str, Any]]) -> TraceSummary:
    """Return the summary of a trace's events; raises TraceError if it has none that count."""
    trace = _Trace()
    for event in events:
        trace.add_event(event)
    on_gpu = bool(trace.kernels)
    ran = trace.kernels + trace.copies if on_gpu else [*chain(*trace.threads.values())]
    window = _find_time_window(trace.steps, ran if on_gpu or not trace.steps else ())
    if window is None:
        raise TraceError("the trace has neither kernels nor operators")
    totals = _Totals(list)
    compute, communication = (
        _split_gpu_compute_communication(trace, totals)
        if on_gpu
        else _split_cpu_compute_communication(trace, totals)
    )
    copies = [(copy.begin, copy.end) for copy in trace.copies] if on_gpu else []
    parts = [
        intersect_intervals(merge_intervals(part), [window]) for part in (compute, communication, copies)
    ]
    busy = merge_intervals(interval for part in parts for interval in part)
    wall = window[1] - window[0]
    entries = (TopEntry(name=name, count=len(took), seconds=sum(took)) for name, took in totals.items())
    return TraceSummary(
        on_gpu=on_gpu,
        steps=len(trace.steps),
        wall_s=wall * _SECOND,
        compute_s=sum_interval_lengths(parts[0]) * _SECOND,
        communication_s=sum_interval_lengths(parts[1]) * _SECOND,
        overlap_s=sum_interval_lengths(intersect_intervals(parts[0], parts[1])) * _SECOND,
        copy_s=sum_interval_lengths(parts[2]) * _SECOND,
        idle_s=max(wall - sum_interval_lengths(busy), 0.0) * _SECOND,
        events=trace.events,
        top=tuple(sorted(entries, key=lambda entry: (-entry.seconds, entry.name))[:MOST_TOP]),
    )


def _event_to_call(event: Mapping[str, Any]) -> Call | None:
    name, begin, took = (event.get("name"), _read_event_time(event, "ts"), _read_event_time(event, "dur"))
    if event.get("ph") != "X" or not isinstance(name, str) or begin is None or took is None:
        return None
    if took < 0:
        return None
    return Call(begin, begin + took, name, bool(_COLLECTIVE.match(name)))


def _read_event_time(event: Mapping[str, Any], key: str) -> float | None:
    """Return a time in microseconds; None if it is missing or beyond thousands of years."""
    value: Any = event.get(key)
    if type(value) in {int, float} and is_within_limit(value, _LATEST):
        return float(value)
    return None


def _find_time_window(steps: list[Interval], ran: Iterable[Call]) -> Interval | None:
    """Return the time from the first step to the end of the last one, and of what it started."""
    begins = [begin for begin, _ in steps] or [call.begin for call in ran]
    if not begins:
        return None
    ends = [end for _, end in steps] + [call.end for call in ran]
    return min(begins), max(ends)


def _split_gpu_compute_communication(trace: _Trace, totals: _Totals) -> tuple[list[Interval], list[Interval]]:
    compute: list[Interval] = []
    communication: list[Interval] = []
    for call in trace.kernels:
        (communication if call.communicates else compute).append((call.begin, call.end))
        totals[call.name].append((call.end - call.begin) * _SECOND)
    return compute, communication


def _split_cpu_compute_communication(trace: _Trace, totals: _Totals) -> tuple[list[Interval], list[Interval]]:
    compute: list[Interval] = []
    communication: list[Interval] = []
    for calls in trace.threads.values():
        for time_ in compute_self_times_of_calls(calls):
            (communication if time_.call.communicates else compute).extend(time_.own)
            totals[time_.call.name].append(sum_interval_lengths(time_.own) * _SECOND)
    return compute, communication


@dataclass(slots=True)
class Call:
    """A call: its time, its name, and whether it belongs to communication."""

    begin: float
    end: float
    name: str
    communicates: bool


@dataclass(slots=True)
class OwnTime:
    """A call with the intervals in which none of the calls within it ran."""

    call: Call
    own: list[Interval] = field(default_factory=list)


def compute_self_times_of_calls(calls: Iterable[Call]) -> Iterator[OwnTime]:
    """Yield the calls of one thread with their own time, each when it has ended.

    Calls nest. One that begins within another and ends after it (clocks are rounded) is taken to
    end with it. What is called within communication is communication.
    """
    open_: list[OwnTime] = []
    since = 0.0
    for call in sorted(calls, key=lambda call: (call.begin, -call.end)):
        while open_ and open_[-1].call.end <= call.begin:
            yield (ended := _close_innermost_call(open_, since))
            since = max(since, ended.call.end)
        if open_:
            outer = open_[-1]
            _add_self_time_interval(outer, since, call.begin)
            call.end = min(call.end, outer.call.end)
            call.communicates = call.communicates or outer.call.communicates
        open_.append(OwnTime(call))
        since = call.begin
    while open_:
        yield (ended := _close_innermost_call(open_, since))
        since = max(since, ended.call.end)


def _close_innermost_call(open_: list[OwnTime], since: float) -> OwnTime:
    ended = open_.pop()
    _add_self_time_interval(ended, since, ended.call.end)
    return ended


def _add_self_time_interval(one: OwnTime, begin: float, end: float) -> None:
    if end > begin:
        one.own.append((begin, end))
