"""Promises of features.profiling.summary, against sets of points."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hpckit.features.profiling.summary import (
    Interval,
    intersect_intervals,
    merge_intervals,
    sum_interval_lengths,
)

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


def points(intervals: list[Interval]) -> set[int]:
    """Return the unit cells that intervals with whole ends cover."""
    return {at for begin, end in intervals for at in range(int(begin), int(end))}


@given(INTERVALS)
def test_union_covers_the_same_points_once(given_: list[Interval]) -> None:
    """Its intervals are in order, have a length, and do not touch."""
    found = merge_intervals(given_)
    assert points(found) == points(given_)
    assert sum_interval_lengths(found) == len(points(given_))
    assert all(begin < end for begin, end in found)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


@given(INTERVALS, INTERVALS)
def test_intersection_is_what_both_cover(first: list[Interval], second: list[Interval]) -> None:
    """And its length and the union's add up to both."""
    one, other = merge_intervals(first), merge_intervals(second)
    both = intersect_intervals(one, other)
    assert points(both) == points(one) & points(other)
    assert sum_interval_lengths(both) + sum_interval_lengths(
        merge_intervals(one + other)
    ) == sum_interval_lengths(one) + sum_interval_lengths(other)
