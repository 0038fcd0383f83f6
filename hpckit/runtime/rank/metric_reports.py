"""What is recorded of logged values, and which are worth reporting to a study.

Responsible for plain values and for the choice of steps: few, and the same ones in every run; it
must not know who is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpckit.runtime.channel.messages import Reported

_ALL_BELOW = 64
"""Up to here every step counts; beyond, 32 to each doubling: 500 reports of a million steps."""


@dataclass(slots=True, kw_only=True)
class MetricReports:
    """The reports of one rank: of the metric `name`, None where nothing is to be reported."""

    name: str | None = None
    _last: int = -1

    def of(self, step: object, metrics: Mapping[str, object]) -> Reported | None:
        """Return what to report of what is logged at a step, None where that is nothing.

        A study compares runs at the same steps, so that no clock has a say in this.
        """
        value = metrics.get(self.name) if self.name is not None else None
        if not isinstance(step, int) or isinstance(value, bool):
            return None
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        place = _place(step)
        if place <= self._last:
            return None
        self._last = place
        return Reported(step=step, value=float(value))


def _place(step: int) -> int:
    """Return the step at which the stretch begins that a step is in."""
    if step < _ALL_BELOW:
        return step
    width = step.bit_length() - _ALL_BELOW.bit_length() + 1
    return step >> width << width


def plain_metric(name: str, value: Any) -> float | int | str | bool | None:
    """Return what a row of metrics holds of a value; one that is not finite becomes a text.

    Raises TypeError with the metric's name for what is no number, no text and no single element.
    """
    kind = type(value).__name__
    if hasattr(value, "item"):
        shape = tuple(getattr(value, "shape", ()))
        try:
            value = value.item()
        except (RuntimeError, ValueError):  # of torch and of numpy: more than one element
            kind = f"{kind} of shape {shape}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"run.log({name}=…) got a {kind}; allowed are numbers, strings and tensors of one element"
    )
