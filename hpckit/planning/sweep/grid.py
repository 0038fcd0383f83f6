"""From the axes of a sweep to its points. Pure; it must not know how an axis is written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from hpckit.errors import ConfigError

MAX_POINTS = 100_000
"""More is a slip of the keyboard: by default a Slurm array has at most 1001 elements."""


def expand(axes: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return every combination of one value of each axis, the last axis changing fastest.

    No axis at all is one point without values. Raises ConfigError above `MAX_POINTS` points.
    """
    count = prod(len(axis) for axis in axes)
    if count > MAX_POINTS:
        raise ConfigError(
            f"The sweep has {_counted(count, axes)} points{_sizes(axes)}; at most {MAX_POINTS} are "
            "launched.",
            hint="Narrow an axis, or launch it in parts.",
        )
    return tuple(product(*axes))


def _counted(count: int, axes: Sequence[Sequence[str]]) -> str:
    """Return how many points there are; axes are listed no further than to one value too many."""
    cut = any(len(axis) > MAX_POINTS for axis in axes)
    return f"more than {MAX_POINTS}" if cut else str(count)


def _sizes(axes: Sequence[Sequence[str]]) -> str:
    sizes = [
        f"more than {MAX_POINTS}" if len(axis) > MAX_POINTS else str(len(axis))
        for axis in axes
        if len(axis) > 1
    ]
    return f" ({' x '.join(sizes)})" if len(sizes) > 1 else ""
