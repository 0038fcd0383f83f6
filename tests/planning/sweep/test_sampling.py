"""What is drawn at random: inside the space, and from the seed alone."""

from __future__ import annotations

import math
from itertools import islice
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model.search import Axis, AxisKind
from hpckit.planning.sweep.points import draw_random_points

_BOUNDS = st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3)).map(sorted)
_INTEGERS = st.tuples(st.integers(1, 50), st.integers(1, 50)).map(sorted)


def _drawn(axis: Axis, samples: int = 50, seed: int = 0) -> list[float]:
    return [values[axis.key] for values in draw_random_points([axis], samples=samples, seed=seed)]


@settings(deadline=None)
@given(bounds=_BOUNDS, log=st.booleans(), seed=st.integers())
def test_drawn_numbers_lie_inside_their_interval(bounds: list[float], *, log: bool, seed: int) -> None:
    """No number is outside, by no rounding either."""
    axis = Axis(key="x", kind=AxisKind.real, low=bounds[0], high=bounds[1], log=log)
    assert all(bounds[0] <= number <= bounds[1] for number in _drawn(axis, seed=seed))


@settings(deadline=None)
@given(bounds=_INTEGERS, log=st.booleans(), seed=st.integers(), step=st.integers(2, 9))
def test_drawn_integers_are_integers_of_their_interval(
    bounds: list[int], *, log: bool, seed: int, step: int
) -> None:
    """Both ends count, and with a step only what lies on it."""
    low, high = bounds
    axis = Axis(key="x", kind=AxisKind.integer, low=low, high=high, log=log)
    assert {*_drawn(axis, seed=seed)} <= {*range(low, high + 1)}
    steps = range(low, high + 1, step)
    stepped = Axis(key="x", kind=AxisKind.integer, low=low, high=steps[-1], step=step)
    assert {*_drawn(stepped, seed=seed)} <= {*steps}


def test_drawn_integers_reach_both_ends_evenly() -> None:
    """Of eight integers, each is an eighth of what is drawn."""
    drawn = _drawn(Axis(key="x", kind=AxisKind.integer, low=1, high=8), samples=8000)
    assert all(abs(drawn.count(number) - 1000) < 150 for number in range(1, 9))


def test_drawn_logarithms_are_even() -> None:
    """Half of what is drawn between 1e-5 and 1e-1 is below 1e-3."""
    drawn = _drawn(Axis(key="x", kind=AxisKind.real, low=1e-5, high=1e-1, log=True), samples=4000)
    assert abs(math.log10(median(drawn)) + 3) < 0.15


def test_decimal_steps_are_as_people_write_them() -> None:
    """A range by 0.1 has 0.3 in it, not 0.30000000000000004."""
    axis = Axis(key="x", kind=AxisKind.real, low=0.0, high=0.9, step=0.1)
    assert {*_drawn(axis, samples=300)} == {round(number / 10, 1) for number in range(10)}


def test_draws_of_one_axis_do_not_depend_on_the_others() -> None:
    """A further axis, or more samples, changes nothing of what was drawn for a key."""
    x = Axis(key="x", kind=AxisKind.real, low=0.0, high=1.0)
    y = Axis(key="y", kind=AxisKind.choice, values=("a", "b"))
    alone = _drawn(x, samples=5)
    together = [values["x"] for values in islice(draw_random_points([y, x], samples=9, seed=0), 5)]
    assert alone == together
