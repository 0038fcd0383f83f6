"""Which closed segments are due to be replaced by coarser ones. Pure.

Rows stay as they were measured for half a day, then become rows of five minutes, after a week of
half an hour. Where that is not enough for the limit, the oldest are made coarser sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

SEGMENT = timedelta(hours=6)
"""What one file holds at most."""

STEPS: tuple[tuple[timedelta, float], ...] = (
    (timedelta(hours=12), 300.0),
    (timedelta(days=7), 1800.0),
)
"""From which age on rows are how long, in seconds; the age is that of the segment's end."""

COARSEST_S = 7200.0
"""Rows are never longer than this, however little room there is."""

_LENGTHS = (*(row_s for _, row_s in STEPS), COARSEST_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """A closed file of `size` bytes with rows of `row_s` seconds, from `start`."""

    file: Path
    start: datetime
    row_s: float
    size: int


def due_segments(
    segments: Iterable[ClosedSegment], *, now: datetime, most_bytes: float
) -> dict[ClosedSegment, float]:
    """Return the segments to replace, each with the seconds of its new rows."""
    ordered = sorted(segments, key=lambda one: one.start)
    lengths = {one: max(one.row_s, _length_by_age(now - one.start - SEGMENT)) for one in ordered}
    for length in _LENGTHS:
        for one in ordered:
            if expected_bytes(lengths) <= most_bytes:
                break
            lengths[one] = max(lengths[one], length)
    return {one: row_s for one, row_s in lengths.items() if row_s > one.row_s}


def _length_by_age(age: timedelta) -> float:
    return max((row_s for since, row_s in STEPS if age >= since), default=0.0)


def expected_bytes(lengths: Mapping[ClosedSegment, float]) -> float:
    """Return about how large segments become with rows of these lengths."""
    return sum(one.size * one.row_s / row_s for one, row_s in lengths.items())
