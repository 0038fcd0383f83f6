"""What the calls of one thread did themselves, without the calls within them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hpckit.planning.profile.intervals import Interval


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


def own_times(calls: Iterable[Call]) -> Iterator[OwnTime]:
    """Yield the calls of one thread with their own time, each when it has ended.

    Calls nest. One that begins within another and ends after it (clocks are rounded) is taken to
    end with it. What is called within communication is communication.
    """
    open_: list[OwnTime] = []
    since = 0.0
    for call in sorted(calls, key=lambda one: (one.begin, -one.end)):
        while open_ and open_[-1].call.end <= call.begin:
            yield (ended := _end(open_, since))
            since = max(since, ended.call.end)
        if open_:
            outer = open_[-1]
            _own(outer, since, call.begin)
            call.end = min(call.end, outer.call.end)
            call.communicates = call.communicates or outer.call.communicates
        open_.append(OwnTime(call))
        since = call.begin
    while open_:
        yield (ended := _end(open_, since))
        since = max(since, ended.call.end)


def _end(open_: list[OwnTime], since: float) -> OwnTime:
    ended = open_.pop()
    _own(ended, since, ended.call.end)
    return ended


def _own(one: OwnTime, begin: float, end: float) -> None:
    if end > begin:
        one.own.append((begin, end))
