"""Gradients over all meshes of a layout: their norm, clipping, those of tied weights, and a tree.

With `parallel.reduce=tree` their bits do not depend on the number of replicas. A floating-point sum
depends on its order. So each group of samples gets a gradient of its own, from zero, and these are
added as a fixed binary tree, over groups of one rank and over ranks alike. The first rank then
hands the sum to all. Nothing is left to a collective's own order of adding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel

from hpckit.errors import UsageError
from hpckit.model.parallel.reduction_tree import TreeNode, list_partial_sum_transfers
from hpckit.runtime.tensor_parts import local_shard_of_tensor
from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedWeight:
    """A weight of which several pipeline stages have a copy: this rank and others, in `ranks`.

    Gradients meet on `device`, wherever they are kept. `learns` is whether it required gradients
    when the model was laid out: copies must agree on that.
    """

    parameter: nn.Parameter
    learns: bool
    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroup
    device: torch.device

    def sum_gradient_over_copies(self) -> None:
        """Add the gradients of all copies, in the order of `ranks`; all of them call this."""
        if not self.learns:
            return
        gradient = self.parameter.grad
        if gradient is None:
            gradient = self.parameter.grad = torch.zeros_like(self.parameter)
        local = local_shard_of_tensor(gradient)
        given = local.to(self.device).contiguous()
        taken = {rank: torch.empty_like(given) for rank in self.ranks if rank != self.rank}
        exchange = [
            operation
            for one, buffer in taken.items()
            for operation in (
                dist.P2POp(dist.isend, given, one, self.group),
                dist.P2POp(dist.irecv, buffer, one, self.group),
            )
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        first, *others = (taken.get(rank, given) for rank in self.ranks)
        total = first.clone()
        for other in others:
            total += other
        local.copy_(total)


@contextmanager
def set_earlier_gradients_aside(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Have parameters begin without gradients; afterwards those of before are added again."""
    earlier = {id(parameter): (parameter, parameter.grad) for parameter in parameters}
    for one, _ in earlier.values():
        one.grad = None
    try:
        yield
    finally:
        for one, gradient in earlier.values():
            one.grad = sum_optional_gradients(gradient, one.grad)


def sum_optional_gradients(earlier: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, either of which may be missing."""
    if earlier is None or new is None:
        return new if earlier is None else earlier
    return earlier + new


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    device: torch.device,
    pipeline: dist.ProcessGroup | None,
    tied: Sequence[TiedWeight],
) -> Tensor:
    """Scale the gradients of a rank's part so that the 2-norm of the whole model's is `max_norm`.

    Returns what it was, on `device`; they stay if it was less. Collective.
    """
    learned = [(id(parameter), parameter.grad) for parameter in parameters if parameter.grad is not None]
    # Of a tied weight, the copy of the first rank counts.
    uncounted = {id(tie.parameter) for tie in tied if tie.rank != tie.ranks[0]}
    placed_alike: dict[object, list[Tensor]] = {}
    for one, grad in learned:
        key = (grad.device_mesh, grad.placements) if isinstance(grad, DTensor) else None
        if one not in uncounted:
            placed_alike.setdefault(key, []).append(grad)
    squares = [_sum_gradient_squares(gradients) for gradients in placed_alike.values()]
    zero = torch.zeros((), dtype=torch.float64, device=device)
    total = torch.stack(squares).sum().to(device) if squares else zero
    if pipeline is not None:
        dist.all_reduce(total, group=pipeline)
    total = total.sqrt()
    factor = float(max_norm / (total + 1e-6))
    if not factor >= 1.0:  # it may be NaN
        for _, grad in learned:
            local_shard_of_tensor(grad).mul_(factor)
    return total


def scale_gradients(parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
    """Multiply the gradients of parameters, wherever they are, by a number."""
    for parameter in parameters:
        if parameter.grad is not None:
            local = local_shard_of_tensor(parameter.grad)
            local.mul_(factor.to(local.device))


def _sum_gradient_squares(gradients: list[Tensor]) -> Tensor:
    """Return the sum of the squares of gradients that are placed alike; collective."""
    squares = torch.stack(
        [torch.linalg.vector_norm(local_shard_of_tensor(g)).double() ** 2 for g in gradients]
    ).sum()
    first = gradients[0]
    if isinstance(first, DTensor):
        squares = squares.to(first.device_mesh.device_type)  # offloaded ones are on the host
        for axis, placement in enumerate(first.placements):
            if isinstance(placement, Partial):
                raise UsageError(
                    "gradients that are still to be summed over ranks cannot be clipped",
                    hint="call run.clip_grad_norm_ after the last backward pass of a step",
                )
            if not isinstance(placement, Replicate) and first.device_mesh.size(axis) > 1:
                dist.all_reduce(squares, group=first.device_mesh.get_group(axis))
    return squares


_ROOT = 0


def refuse_non_tree_reductions(module: nn.Module) -> None:
    """Have a model raise wherever its gradients would be summed in another order.

    Raises UsageError if its gradients depend on more than the rows of a group.
    """
    for name, one in module.named_modules():
        if getattr(one, "track_running_stats", False):
            raise UsageError(
                f"{name} is a {type(one).__name__}, whose statistics depend on the rows of each "
                "rank, so that parallel.reduce=tree cannot be exact",
                hint="take GroupNorm or LayerNorm, or parallel.reduce=fast",
            )
    if isinstance(module, DistributedDataParallel):
        module.register_comm_hook(None, _refuse_ddp_reduction)


def _refuse_ddp_reduction(state: Any, bucket: Any) -> Any:
    del state, bucket
    raise UsageError(
        "with parallel.reduce=tree gradients are summed by run.train_step only",
        hint="call run.train_step(model, inputs, targets), or take parallel.reduce=fast",
    )


# torch compares them with its classes, and they are texts here.
_refuse_ddp_reduction.__annotations__.clear()


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
    def own_leaves(self) -> range:
        """The leaves of this rank."""
        return self.leaves[self.rank]

    @property
    def leaf_count(self) -> int:
        """Number of all leaves."""
        return self.leaves[-1].stop

    @property
    def _trained_parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def add_mean_gradients(self, compute: Callable[[int], Tensor]) -> Tensor:
        """Add the mean gradient of all leaves to that of the model; return the mean loss.

        `compute` returns the mean loss of this rank's leaf with a number, counted from 0. The loss
        is float64. Memory for gradients is needed about log2 of this rank's leaves times.
        """
        parameters = self._trained_parameters
        before = [parameter.grad for parameter in parameters]
        try:
            for number, leaf in enumerate(self.own_leaves):
                for parameter in parameters:
                    parameter.grad = None
                loss = compute(number)
                torch.autograd.backward(loss)
                self._losses.append(loss.detach().double())
                self._merge_sums_of_siblings(TreeNode(0, leaf), self._flatten_gradients())
            self._sum_up_tree()
        except BaseException:
            for one, gradient in zip(parameters, before, strict=True):
                one.grad = gradient
            raise
        self._broadcast_mean_gradients(before)
        losses = self.gather_value_per_leaf(self._losses)
        self._losses.clear()
        return losses.mean()

    def _flatten_gradients(self) -> list[Tensor]:
        """Return the gradients as one tensor for each type; zeros for what was not used."""
        parameters = self._trained_parameters
        self._used |= {number for number, one in enumerate(parameters) if one.grad is not None}
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            by_type.setdefault(parameter.dtype, []).append(gradient.reshape(-1))
        return [torch.cat(ones) for ones in by_type.values()]

    def _merge_sums_of_siblings(self, node: TreeNode, right: list[Tensor]) -> None:
        while node.is_right_child and node.sibling in self._sums:
            left = self._sums.pop(node.sibling)
            for one, other in zip(left, right, strict=True):
                one.add_(other)
            node, right = node.parent, left
        self._sums[node] = right

    def _sum_up_tree(self) -> None:
        for node, sender, receiver in list_partial_sum_transfers(self.leaves):
            if sender == self.rank:
                for tensor in self._sums.pop(node):
                    dist.send(tensor, receiver)
            elif receiver == self.rank:
                taken = [torch.empty_like(part) for part in self._sums[node.sibling]]
                for tensor in taken:
                    dist.recv(tensor, sender)
                self._merge_sums_of_siblings(node, taken)

    def _broadcast_mean_gradients(self, before: Sequence[Tensor | None]) -> None:
        parameters = self._trained_parameters
        root = TreeNode(self.leaf_count.bit_length() - 1, 0)
        total = self._sums.pop(root) if self.rank == _ROOT else self._make_empty_buffers()
        used = torch.tensor([number in self._used for number in range(len(parameters))])
        on_device = used.to(parameters[0].device, torch.uint8)
        dist.all_reduce(on_device, dist.ReduceOp.MAX)
        for tensor in total:
            dist.broadcast(tensor, _ROOT)
            tensor.mul_(1.0 / self.leaf_count)  # exact: a power of two
        offsets = dict.fromkeys((tensor.dtype for tensor in total), 0)
        by_type = {tensor.dtype: tensor for tensor in total}
        for parameter, earlier, is_used in zip(parameters, before, on_device.tolist(), strict=True):
            start = offsets[parameter.dtype]
            offsets[parameter.dtype] = start + parameter.numel()
            flat = by_type[parameter.dtype][start : start + parameter.numel()]
            new = flat.view_as(parameter).clone() if is_used else None
            parameter.grad = sum_optional_gradients(earlier, new)
        self._used.clear()

    def _make_empty_buffers(self) -> list[Tensor]:
        sizes: dict[torch.dtype, int] = {}
        for parameter in self._trained_parameters:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
        device = self._trained_parameters[0].device
        return [torch.empty(size, dtype=dtype, device=device) for dtype, size in sizes.items()]

    def gather_value_per_leaf(self, own: Sequence[Tensor]) -> Tensor:
        """Return a number of each leaf, of all ranks, float64; `own` are those of this rank's."""
        numbers = torch.zeros(self.leaf_count, dtype=torch.float64, device=own[0].device)
        numbers[self.own_leaves.start : self.own_leaves.stop] = torch.stack(list(own))
        dist.all_reduce(numbers)  # each place is of one rank, so that nothing is rounded
        return numbers
