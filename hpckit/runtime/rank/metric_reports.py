"""What is recorded of logged values, and which values are reported to a study.

Only a few steps are reported, the same ones in every run. A full disk costs rows, never the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpckit.errors import NonFiniteLossError
from hpckit.model.metrics import number_of
from hpckit.model.plain import LARGEST, finite, is_within
from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics.log import OWN_KEYS, MetricsLog
from hpckit.runtime.channel.messages import Reported
from hpckit.runtime.clock import now
from hpckit.values import dataclass, field

_ALL_BELOW = 64
"""Up to here every step counts; beyond, 32 per doubling: 500 reports for a million steps."""


@dataclass(slots=True, kw_only=True)
class MetricReports:
    """The reports of one rank, about the metric `name`; None if there is nothing to report."""

    name: str | None = None
    _last: int = -1

    def of(self, step: object, metrics: Mapping[str, object]) -> Reported | None:
        """Return what to report of the values logged at a step; None if there is nothing.

        A study compares runs at the same steps, so the choice does not depend on time.
        """
        value = None if self.name is None else finite(metrics.get(self.name))
        if value is None or not isinstance(step, int) or not is_within(step, LARGEST):
            return None
        place = _place(step)
        if place <= self._last:
            return None
        self._last = place
        return Reported(step=step, value=value)


def _place(step: int) -> int:
    """Return the first step of the stretch that a step is in."""
    if step < _ALL_BELOW:
        return step
    width = step.bit_length() - _ALL_BELOW.bit_length() + 1
    return step >> width << width


def plain_metric(name: str, value: Any) -> float | int | str | bool | None:
    """Return a metric value as a row holds it; a number that is not finite becomes a text.

    So does a whole number that no float can hold: as infinity, which readers take it for.

    Raises TypeError with the metric's name unless the value is a number, a text or a single
    element.
    """
    kind = type(value).__name__
    if hasattr(value, "item"):
        shape = tuple(getattr(value, "shape", ()))
        try:
            value = value.item()
        except (RuntimeError, ValueError):  # from torch and numpy: more than one element
            kind = f"{kind} of shape {shape}"
    if isinstance(value, int | float) and not is_within(value):
        return str(number_of(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"run.log({name}=…) got a {kind}; allowed are numbers, strings and tensors of one element"
    )


@dataclass(slots=True, kw_only=True)
class MetricRows:
    """Appends rows to the metrics of an attempt; `dropped` counts those that no disk could take.

    `warn` is called with the reason when the first one is dropped.
    """

    folder: Path
    warn: Callable[[str], None]
    dropped: int = field(default=0, init=False)
    _log: MetricsLog | None = field(default=None, init=False)

    def write(self, row: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Append a row with these values, or drop and count it if that is not possible.

        Raises TypeError for a value that is named as one that every row has.
        """
        if taken := [name for name in OWN_KEYS if name in values]:
            raise TypeError(
                f"run.log({taken[0]}=…): every row has its own {taken[0]}; choose another name"
            )
        if self._log is None:
            self._log = MetricsLog(paths=AttemptPaths(self.folder))
        try:
            at = now().isoformat(timespec="milliseconds")
            self._log.append({"step": row["step"], "at": at, **row, **values})
        except OSError as error:
            self.dropped += 1
            if self.dropped == 1:
                self.warn(f"metrics are dropped for now: {error}")


@dataclass(slots=True)
class LossWatch:
    """Allows `patience` such losses in a row, any number if it is 0; `bad` counts them."""

    patience: int = 0
    bad: int = field(default=0, init=False)

    def judge(self, loss: object, step: int | None) -> None:
        """Take the loss of a step; one that is not finite may be a text here.

        Raises NonFiniteLossError once there are too many.
        """
        self.bad = self.bad + 1 if _is_not_finite(loss) else 0
        if self.patience and self.bad >= self.patience:
            raise NonFiniteLossError(
                f"the loss was {loss} {self.bad} times in a row, last at step {step}",
                hint="lower the learning rate, clip gradients, or raise recovery.nan_patience",
            )


def _is_not_finite(loss: object) -> bool:
    """Return whether a number, or a text that is one, is NaN or infinite; other texts are words."""
    try:
        return not math.isfinite(float(loss))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
