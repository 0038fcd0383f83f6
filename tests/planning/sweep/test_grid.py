"""From axes to points."""

from __future__ import annotations

import pytest

from hpckit.errors import ConfigError
from hpckit.planning.sweep.points import MAX_POINTS, combine_axis_values


def test_expand_lets_the_last_axis_change_fastest() -> None:
    """Points come in the order Hydra's own sweeper has."""
    assert combine_axis_values([["a=1", "a=2"], ["c"], ["b=1", "b=2"]]) == (
        ("a=1", "c", "b=1"),
        ("a=1", "c", "b=2"),
        ("a=2", "c", "b=1"),
        ("a=2", "c", "b=2"),
    )


def test_expand_of_no_axis_is_one_point() -> None:
    """A launch without overrides is one run."""
    assert combine_axis_values([]) == ((),)


def test_expand_refuses_a_sweep_nobody_means() -> None:
    """Too many points are an error that gives the sizes, not a machine out of memory."""
    axis = [str(number) for number in range(1000)]
    with pytest.raises(ConfigError, match=rf"1000000 points \(1000 x 1000\).*{MAX_POINTS}"):
        combine_axis_values([axis, ["only"], axis])
