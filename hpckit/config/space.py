"""Reads the space of a sampled sweep from overrides in Hydra's grammar.

It interprets `interval()`, `range()`, `choice()`, `glob()`, `int()` and `tag(log, ...)` for a
sampler.
"""

from __future__ import annotations

import math
from typing import Any, cast

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from hpckit.config.overrides import swept_values
from hpckit.errors import ConfigError
from hpckit.model.search import Axis, AxisKind
from hpckit.planning.sweep.grid import MAX_POINTS

_LOG = "log"


def axis_of(word: Override) -> Axis:
    """Return the axis of a swept override; a choice's `values` are text. Raises ConfigError."""
    swept: Any = word.value()
    key, log = word.key_or_group, _LOG in swept.tags
    if isinstance(swept, IntervalSweep):
        kind = AxisKind.integer if isinstance(swept.start, int) else AxisKind.real
        low, high = cast("tuple[float, float]", (swept.start, swept.end))
        return _checked(word, Axis(key=key, kind=kind, low=low, high=high, log=log))
    if isinstance(swept, RangeSweep):
        return _range(word, swept)
    if log:
        raise _no_log(word)
    return Axis(key=key, kind=AxisKind.choice, values=tuple(swept_values(word)))


def _range(word: Override, swept: RangeSweep) -> Axis:
    """Return the axis of a range: its numbers are ordered, which a sampler may learn from."""
    first_value(word)
    numbers = [value for _, value in zip(range(MAX_POINTS + 1), swept.range(), strict=False)]
    integer = all(isinstance(number, int) for number in numbers)
    step, log = abs(float(swept.step)), _LOG in swept.tags
    if log and not (integer and step == 1):
        raise _no_log(word)
    axis = Axis(
        key=word.key_or_group,
        kind=AxisKind.integer if integer else AxisKind.real,
        low=min(numbers),
        high=max(numbers),
        step=None if integer and step == 1 else int(step) if integer else step,
        log=log,
    )
    return _checked(word, axis)


def _no_log(word: Override) -> ConfigError:
    return ConfigError(
        f"{word.input_line}: the tag log is for interval(), and for range() of integers by 1.",
        hint="Write tag(log, interval(a,b)), or leave the tag out.",
    )


def first_value(word: Override) -> Any:
    """Return the first value of a swept override, an interval's lowest; raises ConfigError."""
    swept: Any = word.value()
    return swept.start if word.is_interval_sweep() else swept_values(word, 1)[0]


def _checked(word: Override, axis: Axis) -> Axis:
    if not (math.isfinite(axis.low) and math.isfinite(axis.high)):
        raise ConfigError(
            f"{word.input_line}: the ends of an interval are numbers.",
            hint="For example interval(0,1).",
        )
    if not axis.low <= axis.high:
        raise ConfigError(
            f"{word.input_line}: an interval goes from its least to its largest value.",
            hint=f"Write interval({axis.high:g},{axis.low:g}).",
        )
    if axis.log and axis.low <= 0:
        raise ConfigError(
            f"{word.input_line}: there is no logarithm of {axis.low:g}; with the tag log both ends "
            "have to be above 0.",
            hint="Raise the lower end, or leave the tag out.",
        )
    return axis
