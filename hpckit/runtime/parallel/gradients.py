"""Gradients over all meshes of a layout: their norm, clipping, and those of tied weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from hpckit.errors import UsageError
from hpckit.runtime.tensor_parts import local_part
from hpckit.values import dataclass


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

    @property
    def counts(self) -> bool:
        """Whether this rank's copy is the one that counts in a norm."""
        return self.rank == self.ranks[0]

    def sum_gradient(self) -> None:
        """Add the gradients of all copies, in the order of `ranks`; all of them call this."""
        if not self.learns:
            return
        gradient = self.parameter.grad
        if gradient is None:
            gradient = self.parameter.grad = torch.zeros_like(self.parameter)
        local = local_part(gradient)
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
def set_aside(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Have parameters begin without gradients; afterwards those of before are added again."""
    earlier = {id(parameter): (parameter, parameter.grad) for parameter in parameters}
    for one, _ in earlier.values():
        one.grad = None
    try:
        yield
    finally:
        for one, gradient in earlier.values():
            one.grad = joined(gradient, one.grad)


def joined(earlier: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, either of which may be missing."""
    if earlier is None or new is None:
        return new if earlier is None else earlier
    return earlier + new


def total_norm(
    parameters: Iterable[nn.Parameter],
    *,
    device: torch.device,
    pipeline: dist.ProcessGroup | None,
    tied: Sequence[TiedWeight],
) -> Tensor:
    """Return the 2-norm of all gradients of the whole model, on `device`; collective."""
    uncounted = {id(tie.parameter) for tie in tied if not tie.counts}
    gradients = [
        parameter.grad
        for parameter in parameters
        if parameter.grad is not None and id(parameter) not in uncounted
    ]
    squares = [_sum_of_squares(group) for group in _by_mesh(gradients)]
    zero = torch.zeros((), dtype=torch.float64, device=device)
    total = torch.stack(squares).sum().to(device) if squares else zero
    if pipeline is not None:
        dist.all_reduce(total, group=pipeline)
    return total.sqrt()


def clip(parameters: Iterable[nn.Parameter], total: Tensor, max_norm: float) -> None:
    """Scale gradients so that their norm, `total`, is at most `max_norm`."""
    factor = float(max_norm / (total + 1e-6))
    if factor >= 1.0:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            local_part(parameter.grad).mul_(factor)


def _by_mesh(gradients: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    groups: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        key = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        groups.setdefault(key, []).append(gradient)
    return groups.values()


def _sum_of_squares(gradients: list[Tensor]) -> Tensor:
    """Return the sum of the squares of gradients that are placed alike; collective."""
    squares = torch.stack(
        [torch.linalg.vector_norm(local_part(g)).double() ** 2 for g in gradients]
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
