"""Promises of thinning: fewer points, the same picture."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.features.reporting.curves import (
    BAND_COLUMNS,
    COLUMNS,
    StepRange,
    build_curve_band,
    compute_column_means,
    find_step_range,
    round_for_chart,
    thin_curve,
)
from hpckit.features.reporting.document import CurvePoints

NUMBERS = st.floats(-1e6, 1e6).map(lambda number: float(f"{number:.5g}"))


@given(st.lists(NUMBERS, min_size=1, max_size=3000))
def test_thinned_curve_keeps_its_extremes_and_its_order(values: list[float]) -> None:
    """However many values, there are two per column at most, and no spike is lost."""
    steps = [float(step) for step in range(len(values))]
    found = thin_curve(steps, values, find_step_range([steps]))
    assert len(found.steps) == len(found.values) <= 2 * COLUMNS + 2
    assert list(found.steps) == sorted(found.steps)
    known = [value for value in found.values if value is not None]
    assert (min(known), max(known)) == (min(values), max(values))
    assert (found.steps[0], found.steps[-1]) == (steps[0], steps[-1])
    assert all(values[int(step)] == value for step, value in zip(found.steps, known, strict=True))


def test_thinned_short_curve_is_whole() -> None:
    """A few values are all drawn; one that is not finite is a gap."""
    found = thin_curve([0.0, 1.0, 2.0], [1.5, math.nan, 2.5], StepRange(low=0, high=2))
    assert found == CurvePoints(steps=(0, 1, 2), values=(1.5, None, 2.5))


def test_thinned_column_of_nothing_finite_is_a_gap() -> None:
    """Beside others of its column, what is not finite is left out; a column of that alone is a gap."""
    steps = [float(step) for step in range(10 * COLUMNS)]
    values = [math.nan if 100 <= step < 200 or step == 15 else step for step in steps]
    values[200], values[310] = -math.inf, math.inf
    found = dict(zip(*(one for one in _pair(steps, values)), strict=True))
    assert found[100] is None
    assert all(value is not None for step, value in found.items() if not 100 <= step < 200)


def _pair(steps: list[float], values: list[float]) -> tuple[tuple[float, ...], tuple[object, ...]]:
    found = thin_curve(steps, values, find_step_range([steps]))
    return found.steps, found.values


def test_band_is_the_quantiles_of_the_runs() -> None:
    """Eleven constant curves from 0 to 10: a tenth is at 1, the half at 5, nine tenths at 9."""
    shown = StepRange(low=0, high=100)
    means = [compute_column_means([0, 50, 100], [float(run)] * 3, shown) for run in range(11)]
    found = build_curve_band(means, shown)
    assert found is not None
    assert (found.runs, found.low[0], found.middle[0], found.high[0]) == (11, 1, 5, 9)
    assert len(found.steps) == 3


def test_band_of_two_runs_is_none() -> None:
    """Two runs are no crowd."""
    shown = StepRange(low=0, high=1)
    assert build_curve_band([{0: 1.0}, {0: 2.0}], shown) is None
    assert len(compute_column_means([float(one) for one in range(500)], [1.0] * 500, shown)) <= BAND_COLUMNS


@pytest.mark.parametrize(
    ("value", "wanted"), [(3.0, 3), (1234567.0, 1234567), (0.123456789, 0.123457), (1e300, 1e300)]
)
def test_rounded_number_is_short_and_steps_stay_whole(value: float, wanted: float) -> None:
    """Six digits are enough for a picture, not for a step."""
    assert round_for_chart(value) == wanted
