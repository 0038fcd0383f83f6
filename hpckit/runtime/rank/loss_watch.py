"""Counts losses that are not finite, and ends a run that has too many of them in a row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hpckit.errors import NonFiniteLossError


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
