"""Sets of intervals on a line: union, intersection and length. Pure.

A set is a list of disjoint intervals (begin, end), the earliest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
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


def intersection(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
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


def length(intervals: Sequence[Interval]) -> float:
    """Return the length of a set."""
    return sum(end - begin for begin, end in intervals)
