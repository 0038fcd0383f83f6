"""The loss of a step, which is that of the whole batch, whatever part of it a rank has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor

from hpckit.errors import UsageError
from hpckit.runtime.parallel.arguments import LossFunction
from hpckit.runtime.parallel.loss.cut_vocabulary import summed_over_ranks
from hpckit.runtime.parallel.loss.loss_check import LossCheck
from hpckit.runtime.parallel.mesh import PendingSum
from hpckit.values import dataclass, field

_IGNORED = -100
"""Targets that torch's cross entropy leaves out."""


def summed_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the summed cross entropy of logits [..., classes] for whole numbers [...], in float64.

    Targets of -100 do not count. Sums of bfloat16 would lose a percent over many targets. Logits
    whose classes are cut over ranks are not gathered: then it is collective.
    """
    cut = getattr(outputs, "cut_vocabulary", None)
    if cut is not None:
        return summed_over_ranks(outputs, targets, cut, _IGNORED)
    if outputs.dtype.itemsize < torch.float32.itemsize:
        outputs = outputs.float()
    summed = F.cross_entropy(
        outputs.flatten(0, -2), targets.flatten(), reduction="sum", ignore_index=_IGNORED
    )
    return summed.double()


def count_targets(targets: Tensor) -> Tensor:
    """Return how many targets are not ignored, on their device."""
    return (targets != _IGNORED).sum()


def measure(
    function: LossFunction | None, outputs: Any, targets: Any
) -> tuple[Tensor, Tensor, bool]:
    """Return the loss of some rows, a sum and its weight in float64, and if a function told both.

    Without a function it is the cross entropy.
    Raises UsageError if a function returns neither a number nor a sum and its weight.
    """
    if function is None:
        summed, count = summed_cross_entropy(outputs, targets), count_targets(targets)
        return summed, count.double(), False
    found = function(outputs, targets)
    pair = isinstance(found, tuple) and len(found) == len(("sum", "weight"))
    given: Any = found[0] if pair else found
    weight: Any = found[1] if pair else 1.0
    if not isinstance(given, Tensor) or given.numel() != 1 or torch.as_tensor(weight).numel() != 1:
        shown = list(given.shape) if isinstance(given, Tensor) else type(found).__name__
        raise UsageError(
            f"loss(outputs, targets) returned {shown}",
            hint="return a mean over rows, as a tensor with one number, or a pair: a sum and its "
            "weight",
        )
    value = given.double().reshape(())
    weight = torch.as_tensor(weight).detach().to(value).reshape(())
    return value, weight, pair


def _check_graph(value: Tensor) -> None:
    """Raise UsageError for a loss that has no gradient."""
    if not value.requires_grad:
        raise UsageError(
            "the loss of this step has no gradient: no parameter that learns leads to it, or what "
            "it is made of was detached (.detach(), .item(), torch.no_grad())",
            hint="compute it from the outputs of the model by torch's own functions, outside of "
            "torch.no_grad(), and leave some parameters with requires_grad",
        )


def quotient(value: Tensor, weight: Tensor) -> Tensor:
    """Return a sum over its weight; 0 where nothing has a weight."""
    return torch.where(weight == 0, 0.0, value / weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingScale:
    """What a sum over targets is multiplied by, once the targets of all ranks are counted.

    `alike` ranks each have the same ones; a mean of `parts` is taken after.
    """

    count: PendingSum
    parts: int
    alike: int

    def wait(self) -> Tensor:
        """Return the scale, 0 without any target; waits for the ranks that still count."""
        count = self.count.wait() / self.alike
        return quotient(torch.full_like(count, self.parts), count)


@dataclass(slots=True, kw_only=True)
class StepLoss:
    """What one rank has of the loss of a step; without a function it is the cross entropy.

    `scale` is what a mean over this rank's rows is multiplied by, or a sum over targets. `total` is
    the sum of what was differentiated so far, and `weights` are those of its parts, float64, if
    the function returns a `pair`; None until it was called. Pairs are differentiated as sums.
    """

    function: LossFunction | None
    scale: Tensor | float | PendingScale
    check: LossCheck | None = None
    total: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    weights: list[Tensor] = field(default_factory=list)
    pair: bool | None = None

    def of_part(self, outputs: Any, targets: Any, part: float, *, whole: float = 1.0) -> Tensor:
        """Return what to differentiate for some rows: a `part` of those of which `whole` is told.

        The product of both is which part they are of this rank's rows; 0 counts nothing. The value
        is float64.
        """
        part *= whole
        if self.function is None:  # the targets of the whole batch are counted once, for the scale
            self.pair, value = False, summed_cross_entropy(outputs, targets)
        else:
            value, weight, self.pair = measure(self.function, outputs, targets)
        _check_graph(value)
        if not part:  # also what is NaN
            return torch.nan_to_num(value) * 0.0
        if self.function is None:
            value = value * self.settle()
        else:
            if self.check is not None:
                self.check.trace(value, outputs, targets)
                self.check.see(self.function, outputs, targets)
            if self.pair:
                self.weights.append(weight)
            else:
                value = value * (self.settle() * part)
        self.total = self.total.to(value.device) + value.detach()
        return value

    def settle(self) -> Tensor | float:
        """Return the scale; waits for it if ranks still count."""
        if isinstance(self.scale, PendingScale):
            self.scale = self.scale.wait()
        return self.scale

    @property
    def weight(self) -> Tensor:
        """The sum of the weights of all parts; 0 without any."""
        return torch.stack(self.weights).sum() if self.weights else torch.zeros_like(self.total)

    def problem(self) -> tuple[str, str]:
        """Return why the function cannot be taken, as far as its values tell, and what to do.

        Empty if it can.
        """
        if self.function is None or self.check is None:
            return "", ""
        self.check.end(self.function, pair=self.pair is True)
        return self.check.problem, self.check.hint
