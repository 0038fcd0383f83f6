"""What the options of `bench comm` may say."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import UsageError
from hpckit.features.interconnect.model import (
    CommOperation,
    check_time_bound,
    list_doubling_sizes,
    parse_operations,
    parse_size_range,
)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("1KiB:64MiB", (2**10, 2**26)),
        ("4k:4g", (2**12, 2**32)),
        ("2048:4096 B", (2048, 4096)),
        ("1MiB", (2**20, 2**20)),
    ],
)
def test_sizes_are_read_with_their_units(text: str, bounds: tuple[int, int]) -> None:
    """Two bounds, or one size."""
    assert parse_size_range(text) == bounds


@pytest.mark.parametrize("text", ["", ":", "1KB:2KB", "-1:4", "8MiB:1MiB", "1:2", "1KiB:5GiB", "x"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    """With an example of what is right."""
    with pytest.raises(UsageError, match="--sizes") as caught:
        parse_size_range(text)
    assert "--sizes 1KiB:64MiB" in caught.value.hint


@given(st.text(max_size=12))
def test_any_text_is_sizes_or_a_usage_error(text: str) -> None:
    """Never another exception."""
    try:
        first, last = parse_size_range(text)
    except UsageError:
        return
    assert first <= last


@given(st.integers(1, 2**32), st.integers(1, 2**32))
def test_sizes_double_up_to_the_largest(one: int, other: int) -> None:
    """The first is there, and the last is more than half of what was asked for."""
    smallest, largest = min(one, other), max(one, other)
    sizes = list_doubling_sizes(smallest, largest)
    assert sizes[0] == smallest
    assert sizes[-1] <= largest < 2 * sizes[-1]
    assert all(later == 2 * earlier for earlier, later in itertools.pairwise(sizes))


def test_operations_are_listed_with_commas_or_given_again() -> None:
    """Each once, in the order given; all without any."""
    wanted = (CommOperation.broadcast, CommOperation.all_reduce)
    assert parse_operations(["broadcast, all_reduce", "broadcast"]) == wanted
    assert parse_operations([]) == tuple(CommOperation)
    with pytest.raises(UsageError, match="allreduce"):
        parse_operations(["allreduce"])


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan"), float("inf")])
def test_times_out_of_bounds_are_refused(seconds: float) -> None:
    """From a second to an hour."""
    with pytest.raises(UsageError, match="--time-s"):
        check_time_bound(seconds)
