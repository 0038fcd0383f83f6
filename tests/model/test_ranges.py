"""Numbers in words, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.counted import format_ranges, parse_number_ranges


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 7, 5, 4], "0-2, 4-5, 7")])
def test_ranges_are_short(numbers: list[int], text: str) -> None:
    """Neighbours become one range, in order."""
    assert format_ranges(numbers) == text


@given(st.sets(st.integers(0, 99), min_size=1))
def test_ranges_are_read_back(numbers: set[int]) -> None:
    """What is written is what is read."""
    assert parse_number_ranges(format_ranges(numbers), 100) == numbers


def test_ranges_may_be_open() -> None:
    """`7-` is all from 7, also where 7 is the last one."""
    assert parse_number_ranges("1, 7-", 10) == {1, 7, 8, 9}
    assert parse_number_ranges("9-", 10) == {9}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is neither a number nor a range"),
        ("1,", "'' is neither"),
        ("-3", "'-3' is neither"),
        ("1..3", "'1..3' is neither"),
        ("٣", "is neither"),
        ("7-3", "'7-3' ends before it begins"),
        ("3-10", "there is no 10"),
        ("12-", "there is no 12"),
        ("0-999999999", "there is no 999999999"),
    ],
)
def test_ranges_that_are_none_are_refused(text: str, said: str) -> None:
    """What is wrong is said, before a range of a billion is built."""
    with pytest.raises(ValueError, match=said):
        parse_number_ranges(text, 10)
