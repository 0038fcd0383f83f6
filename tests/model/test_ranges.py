"""Numbers in words."""

import pytest

from hpckit.model.ranges import ranges


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 7, 5, 4], "0-2, 4-5, 7")]
)
def test_ranges_are_short(numbers: list[int], text: str) -> None:
    """Neighbours become one range, in order."""
    assert ranges(numbers) == text
