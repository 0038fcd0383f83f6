"""The loss of a step, which is that of the whole batch, whatever part of it a rank has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor

LossFunction = Callable[[Any, Any], Tensor]
"""Takes outputs and targets of some rows; returns a mean over them."""

_IGNORED = -100
"""Targets that torch's cross entropy leaves out."""


def summed_cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed cross entropy of logits [..., classes] for whole numbers [...].

    The second is the number of targets that count, all but -100.
    """
    summed = F.cross_entropy(
        outputs.flatten(0, -2), targets.flatten(), reduction="sum", ignore_index=_IGNORED
    )
    return summed, count_targets(targets)


def count_targets(targets: Tensor) -> Tensor:
    """Return how many targets are not ignored, on their device."""
    return (targets != _IGNORED).sum()


def measure(function: LossFunction | None, outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Return a sum over rows and its weight, float64; their quotient is the loss of the rows."""
    if function is None:
        value, weight = summed_cross_entropy(outputs, targets)
        return value.double(), weight.double()
    value = function(outputs, targets).double()
    return value, torch.ones_like(value)


def quotient(value: Tensor, weight: Tensor) -> Tensor:
    """Return a sum over its weight; 0 where nothing has a weight."""
    return torch.where(weight == 0, 0.0, value / weight)


@dataclass(slots=True, kw_only=True)
class StepLoss:
    """What one rank has of the loss of a step; without a function it is the cross entropy.

    `scale` is what a mean over this rank's rows is multiplied by, or a sum over targets. `total` is
    the sum of what was differentiated so far, float64.
    """

    function: LossFunction | None
    scale: Tensor | float
    total: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    def of_part(self, outputs: Any, targets: Any, part: float, *, whole: float = 1.0) -> Tensor:
        """Return what to differentiate for some rows: a `part` of those of which `whole` is told.

        The product of both is which part they are of this rank's rows; 0 counts nothing. The value
        is float64.
        """
        part *= whole
        value, _ = measure(self.function, outputs, targets)
        if not part:  # also what is NaN
            return torch.nan_to_num(value) * 0.0
        value = value * (self.scale if self.function is None else self.scale * part)
        self.total = self.total.to(value.device) + value.detach()
        return value
