"""Curves in text: spikes stay visible, odd numbers draw nothing wrong, memory is bounded."""

from __future__ import annotations

import math

import pytest

from hpckit.features.top.plot import Curve, draw_braille_plot


def dots(lines: list[str]) -> int:
    """Return how many dots are drawn."""
    return sum((ord(one) - 0x2800).bit_count() for line in lines for one in line)


def test_spike_of_one_step_among_thousands_is_drawn() -> None:
    """One value of 100 among zeros reaches the top line, in a plot of ten characters."""
    points = [(float(step), 100.0 if step == 1234 else 0.0) for step in range(4000)]
    top, *_, bottom = draw_braille_plot(points, 10, 4)
    assert top.strip("\u2800")
    assert len(bottom) == 10
    flat = draw_braille_plot([(float(step), 0.0) for step in range(4000)], 10, 4)
    assert flat[:3] == ["", "", ""]


def test_values_far_apart_are_joined_by_a_line() -> None:
    """Two points in ten characters: every column has a dot."""
    lines = draw_braille_plot([(0.0, 0.0), (100.0, 1.0)], 10, 2)
    assert dots(lines) == 20
    assert lines[0].startswith("\u2800")
    assert not lines[1].endswith("\u28ff")


@pytest.mark.parametrize(
    "points",
    [
        [(0.0, 1e308), (1.0, -1e308)],
        [(-1e308, 1.0), (1e308, 2.0)],
        [(3.0, 5.0)],
        [(3.0, 5.0), (3.0, 7.0)],
        [(2.0, 1.0), (0.0, 2.0), (1.0, 3.0)],
        [(0.0, 5e-324), (1.0, 0.0)],
    ],
)
def test_odd_numbers_are_drawn_somewhere(points: list[tuple[float, float]]) -> None:
    """Huge, tiny, equal and disordered numbers: no error, and some dot in the picture."""
    lines = draw_braille_plot(points, 7, 3)
    assert len(lines) == 3
    assert max(map(len, lines)) <= 7
    assert dots(lines) > 0


def test_nothing_is_no_picture() -> None:
    """Without points or room there is no line."""
    assert draw_braille_plot([], 10, 3) == draw_braille_plot([(0.0, 1.0)], 0, 3) == []


def test_curve_of_a_million_points_stays_small_and_keeps_its_spikes() -> None:
    """Neighbours are merged into the least and the largest of them; NaN is left out."""
    curve = Curve()
    curve.add_points((float(step), math.nan if step % 2 else 1.0) for step in range(100_000))
    curve.add_points([(100_001.0, -7.0)])
    curve.add_points((100_002.0 + step, 1.0 + (step == 50_000)) for step in range(100_000))
    assert len(curve.points) <= 4097
    values = [value for _, value in curve.points]
    assert (min(values), max(values)) == (-7.0, 2.0)
    steps = [step for step, _ in curve.points]
    assert steps == sorted(steps)
    assert all(map(math.isfinite, values))
