"""Gradients whose bits do not depend on the number of replicas (`parallel.reduce=tree`).

A floating-point sum depends on its order. So each group of samples gets a gradient of its own, from
zero, and these are added as a fixed binary tree, over groups of one rank and over ranks alike. The
first rank then hands the sum to all. Nothing is left to a collective's own order of adding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpckit.errors import UsageError
from hpckit.model.parallel.reduction_tree import TreeNode, transfers
from hpckit.runtime.parallel.gradients import joined
from hpckit.values import dataclass, field

_ROOT = 0


def refuse_other_reductions(module: nn.Module) -> None:
    """Have a model raise wherever its gradients would be summed in another order.

    Raises UsageError if its gradients depend on more than the rows of a group.
    """
    for name, one in module.named_modules():
        if getattr(one, "track_running_stats", False):
            raise UsageError(
                f"{name} is a {type(one).__name__}, whose statistics follow from the rows of each "
                "rank, so that parallel.reduce=tree cannot be exact",
                hint="take GroupNorm or LayerNorm, or parallel.reduce=fast",
            )
    if isinstance(module, DistributedDataParallel):
        module.register_comm_hook(None, _refuse)


def _refuse(state: Any, bucket: Any) -> Any:
    del state, bucket
    raise UsageError(
        "with parallel.reduce=tree gradients are summed by run.train_step only",
        hint="call run.train_step(model, inputs, targets), or take parallel.reduce=fast",
    )


_refuse.__annotations__.clear()  # torch compares them with its classes, and they are texts here


@dataclass(slots=True, kw_only=True)
class TreeReduction:
    """Sums the gradients of one model over the groups of a batch, on all ranks.

    `leaves` are those of each rank. Every rank makes the same calls in the same order.
    """

    module: nn.Module
    rank: int
    leaves: Sequence[range]
    _sums: dict[TreeNode, list[Tensor]] = field(default_factory=dict)
    _losses: list[Tensor] = field(default_factory=list)
    _used: set[int] = field(default_factory=set)

    @property
    def own(self) -> range:
        """The leaves of this rank."""
        return self.leaves[self.rank]

    @property
    def count(self) -> int:
        """Number of all leaves."""
        return self.leaves[-1].stop

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def run(self, compute: Callable[[int], Tensor]) -> Tensor:
        """Add the mean gradient of all leaves to that of the model; return the mean loss.

        `compute` returns the mean loss of this rank's leaf with a number, counted from 0. The loss
        is float64. Memory for gradients is needed about log2 of this rank's leaves times.
        """
        parameters = self._parameters
        before = [parameter.grad for parameter in parameters]
        try:
            for number, leaf in enumerate(self.own):
                for parameter in parameters:
                    parameter.grad = None
                loss = compute(number)
                torch.autograd.backward(loss)
                self._losses.append(loss.detach().double())
                self._add(TreeNode(0, leaf), self._flat_gradients())
            self._meet()
        except BaseException:
            for one, gradient in zip(parameters, before, strict=True):
                one.grad = gradient
            raise
        self._give(before)
        return self._mean_loss()

    def _flat_gradients(self) -> list[Tensor]:
        """Return the gradients as one tensor for each type; zeros for what was not used."""
        parameters = self._parameters
        self._used |= {number for number, one in enumerate(parameters) if one.grad is not None}
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            by_type.setdefault(parameter.dtype, []).append(gradient.reshape(-1))
        return [torch.cat(ones) for ones in by_type.values()]

    def _add(self, node: TreeNode, right: list[Tensor]) -> None:
        """Take a sum, and add it to its left siblings as far up as they are here."""
        while node.is_right and node.sibling in self._sums:
            left = self._sums.pop(node.sibling)
            for one, other in zip(left, right, strict=True):
                one.add_(other)
            node, right = node.parent, left
        self._sums[node] = right

    def _meet(self) -> None:
        """Send sums along the tree, until the first rank has that of all leaves."""
        for node, sender, receiver in transfers(self.leaves):
            if sender == self.rank:
                for tensor in self._sums.pop(node):
                    dist.send(tensor, receiver)
            elif receiver == self.rank:
                taken = [torch.empty_like(part) for part in self._sums[node.sibling]]
                for tensor in taken:
                    dist.recv(tensor, sender)
                self._add(node, taken)

    def _give(self, before: Sequence[Tensor | None]) -> None:
        """Hand the sum to all ranks, and add it to the gradients that were there."""
        parameters = self._parameters
        root = TreeNode(self.count.bit_length() - 1, 0)
        total = self._sums.pop(root) if self.rank == _ROOT else self._empty()
        used = torch.tensor([number in self._used for number in range(len(parameters))])
        on_device = used.to(parameters[0].device, torch.uint8)
        dist.all_reduce(on_device, dist.ReduceOp.MAX)
        for tensor in total:
            dist.broadcast(tensor, _ROOT)
            tensor.mul_(1.0 / self.count)  # exact: a power of two
        offsets = dict.fromkeys((tensor.dtype for tensor in total), 0)
        by_type = {tensor.dtype: tensor for tensor in total}
        for parameter, earlier, is_used in zip(parameters, before, on_device.tolist(), strict=True):
            start = offsets[parameter.dtype]
            offsets[parameter.dtype] = start + parameter.numel()
            flat = by_type[parameter.dtype][start : start + parameter.numel()]
            new = flat.view_as(parameter).clone() if is_used else None
            parameter.grad = joined(earlier, new)
        self._used.clear()

    def _empty(self) -> list[Tensor]:
        """Return room for the gradients of all parameters, one tensor for each type."""
        sizes: dict[torch.dtype, int] = {}
        for parameter in self._parameters:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
        device = self._parameters[0].device
        return [torch.empty(size, dtype=dtype, device=device) for dtype, size in sizes.items()]

    def _mean_loss(self) -> Tensor:
        """Return the mean loss of all leaves, added in their order."""
        losses = self.in_order(self._losses)
        self._losses.clear()
        return losses.mean()

    def in_order(self, own: Sequence[Tensor]) -> Tensor:
        """Return a number of each leaf, of all ranks, float64; `own` are those of this rank's."""
        numbers = torch.zeros(self.count, dtype=torch.float64, device=own[0].device)
        numbers[self.own.start : self.own.stop] = torch.stack(list(own))
        dist.all_reduce(numbers)  # each place is of one rank, so that nothing is rounded
        return numbers
