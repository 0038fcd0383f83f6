"""From the axes of a sweep to its points: all of a grid, or some drawn beforehand. Pure.

It does not know how an axis is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import product
from math import prod
from random import Random
from typing import Any, TypeVar

from hpckit.errors import ConfigError
from hpckit.model.counted import format_count
from hpckit.model.search import Axis, AxisKind, Sampler, Sweep

MAX_POINTS = 100_000
"""More is probably a typing mistake: by default a Slurm array has at most 1001 elements."""

_T = TypeVar("_T")


def combine_axis_values(
    axes: Sequence[Sequence[_T]], together: Sequence[Sequence[int]] = ()
) -> tuple[tuple[_T, ...], ...]:
    """Return every combination of one value of each axis, the last axis changing fastest.

    `together` holds the places of axes that advance together: they have the same length, and count
    as one axis at the place of the first. No axes give one point without values. Raises ConfigError
    if there are more than `MAX_POINTS` points.
    """
    first = {place: min(group) for group in together for place in group}
    leading = [place for place in range(len(axes)) if first.get(place, place) == place]
    sizes = [len(axes[place]) for place in leading]
    count = prod(sizes)
    if count > MAX_POINTS:
        raise ConfigError(
            f"The sweep has {_format_point_count(count, sizes)} points{_format_axis_sizes(sizes)}; "
            f"at most {MAX_POINTS} are launched.",
            hint="Narrow an axis, or launch it in parts.",
        )
    column = {place: number for number, place in enumerate(leading)}
    columns = [column[first.get(place, place)] for place in range(len(axes))]
    return tuple(
        tuple(axis[chosen[number]] for axis, number in zip(axes, columns, strict=True))
        for chosen in product(*map(range, sizes))
    )


def check_equal_lengths(lengths: Mapping[str, int]) -> None:
    """Raise ConfigError if keys that advance together differ in their number of values."""
    (key, length), *others = lengths.items()
    for other, size in others:
        if size != length:
            raise ConfigError(
                f"sweep.zip: {key} has {_format_value_count(length)} and {other} has "
                f"{_format_value_count(size)}; keys of one group advance together",
                hint="give them the same number of values, or take one of them out of sweep.zip",
            )


def _format_value_count(count: int) -> str:
    return f"more than {MAX_POINTS} values" if count > MAX_POINTS else format_count(count, "value")


def _format_point_count(count: int, sizes: Sequence[int]) -> str:
    """Return the number of points; an axis that is too long is only read to one value too many."""
    cut = any(size > MAX_POINTS for size in sizes)
    return f"more than {MAX_POINTS}" if cut else str(count)


def _format_axis_sizes(sizes: Sequence[int]) -> str:
    shown = [f"more than {MAX_POINTS}" if size > MAX_POINTS else str(size) for size in sizes if size > 1]
    return f" ({' x '.join(shown)})" if len(shown) > 1 else ""


_LARGEST_SEED = 2**32 - 1


def draw_random_points(axes: Sequence[Axis], *, samples: int, seed: int) -> Iterator[Mapping[str, Any]]:
    """Yield `samples` points: a value for each key; same seed, same axes, same points.

    Every axis has its own random stream, made from the seed and its key. So neither the order of
    the axes nor another axis changes its values, and more samples begin with the same ones. Of
    Python's generator only `Random.random` is used, which gives the same numbers in every version.

    Values of a choice or a range are equally likely. An interval of real numbers is uniform; in one
    of integers, all integers are equally likely, both ends included. With `log` the logarithm is
    uniform; for integers, each bound is first moved outwards by a half, and the result is rounded.
    """
    streams = {axis.key: Random(f"{seed}/{axis.key}") for axis in axes}  # noqa: S311  # no secret
    for _ in range(samples):
        yield {axis.key: pick_axis_value(axis, streams[axis.key].random()) for axis in axes}


def pick_axis_value(axis: Axis, share: float) -> Any:
    """Return the value at the position `share` (0 to 1, without 1) of the axis."""
    if axis.kind is AxisKind.choice:
        return axis.values[int(share * len(axis.values))]
    if axis.step is not None:
        return _pick_stepped_value(axis, axis.step, share)
    if axis.kind is AxisKind.real:
        found = _interpolate(axis.low, axis.high, share, log=axis.log)
        return min(max(found, axis.low), axis.high)
    if axis.log:
        found = round(_interpolate(axis.low - 0.5, axis.high + 0.5, share, log=True))
    else:
        found = int(axis.low) + int(share * (int(axis.high) - int(axis.low) + 1))
    return min(max(found, int(axis.low)), int(axis.high))


def _pick_stepped_value(axis: Axis, step: float, share: float) -> float:
    """Return the value at `share` of a grid of steps, in decimals: 3 * 0.1 is 0.3 here."""
    low, width = Decimal(str(axis.low)), Decimal(str(step))
    count = int((Decimal(str(axis.high)) - low) / width + Decimal("0.5")) + 1
    found = low + width * int(share * count)
    return int(found) if axis.kind is AxisKind.integer else float(found)


def _interpolate(low: float, high: float, share: float, *, log: bool) -> float:
    if log:
        return math.exp(_interpolate(math.log(low), math.log(high), share, log=False))
    return low + (high - low) * share


def check_sampling_settings(sweep: Sweep) -> int:
    """Return how many points to choose. Raises ConfigError if a setting is missing or bad."""
    how = f"sweep.sampler={sweep.sampler}"
    if sweep.samples is None:
        raise ConfigError(
            f"{how} chooses points, and sweep.samples does not say how many.",
            hint="For example sweep.samples=40.",
        )
    if not 1 <= sweep.samples <= MAX_POINTS:
        raise ConfigError(
            f"sweep.samples is {sweep.samples}; it must be 1 to {MAX_POINTS}.",
            hint="For example sweep.samples=40.",
        )
    if sweep.sampler is Sampler.optuna and not sweep.metric:
        raise ConfigError(
            f"{how} learns from what runs report, and sweep.metric does not say which metric.",
            hint="Name what run.log(...) is given: sweep.metric=loss sweep.direction=minimize.",
        )
    if sweep.sampler is Sampler.optuna and not 0 <= sweep.seed <= _LARGEST_SEED:
        raise ConfigError(
            f"sweep.seed is {sweep.seed}; Optuna takes 0 to {_LARGEST_SEED}.",
            hint="For example sweep.seed=1.",
        )
    return sweep.samples
