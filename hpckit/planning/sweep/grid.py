"""From the axes of a sweep to its points. Pure; it does not know how an axis is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import TypeVar

from hpckit.errors import ConfigError
from hpckit.model.counted import counted

MAX_POINTS = 100_000
"""More is probably a typing mistake: by default a Slurm array has at most 1001 elements."""

_T = TypeVar("_T")


def expand(
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
            f"The sweep has {_counted(count, sizes)} points{_listed(sizes)}; at most {MAX_POINTS} "
            "are launched.",
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
                f"sweep.zip: {key} has {_values(length)} and {other} has {_values(size)}; keys of "
                "one group advance together",
                hint="give them the same number of values, or take one of them out of sweep.zip",
            )


def _values(count: int) -> str:
    return f"more than {MAX_POINTS} values" if count > MAX_POINTS else counted(count, "value")


def _counted(count: int, sizes: Sequence[int]) -> str:
    """Return the number of points; an axis that is too long is only read to one value too many."""
    cut = any(size > MAX_POINTS for size in sizes)
    return f"more than {MAX_POINTS}" if cut else str(count)


def _listed(sizes: Sequence[int]) -> str:
    shown = [
        f"more than {MAX_POINTS}" if size > MAX_POINTS else str(size) for size in sizes if size > 1
    ]
    return f" ({' x '.join(shown)})" if len(shown) > 1 else ""
