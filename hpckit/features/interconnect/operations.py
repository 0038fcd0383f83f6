"""The operations that are measured: their buffers, and whether what they leave is right.

Values are small whole numbers in 32-bit floats, so that sums are exact and a flipped bit shows.
Sizes are bytes as nccl-tests counts them: of the whole array, or of the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpckit.features.interconnect.model import CommOperation
from hpckit.values import dataclass

ELEMENT = 4
"""Bytes of a float."""
_PERIOD = 251
"""Values repeat after a prime number of elements, so that a shifted part is noticed."""
_TELLING = 128


def _find_renamed_function(newer: str, older: str) -> Any:
    """Return a function of torch.distributed by its newer name; before torch 2.13 by its older."""
    return getattr(dist, newer, None) or getattr(dist, older)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWorld:
    """The place of this rank among all, and the device of its buffers."""

    rank: int
    size: int
    ranks_per_node: int
    device: torch.device

    @property
    def receiver_offset(self) -> int:
        """How many ranks on the receiver of a message is: in the next node, if there is one."""
        return self.ranks_per_node if self.size > self.ranks_per_node else 1


PreparedOperation = tuple[Tensor, Callable[[], object], Callable[[], Tensor]]
"""The tensor that has the result, what communicates, and what makes the right result to compare."""


def prepare_operation(operation: CommOperation, size: int, world: RankWorld) -> PreparedOperation:
    """Return an operation of `size` bytes; raises RuntimeError if memory does not suffice."""
    return _MAKERS[operation](max(1, size // ELEMENT), world)


def _make_pattern(count: int, device: torch.device, *, first: int = 0) -> Tensor:
    """Return `count` floats, that of element i being (first + i) mod 251."""
    numbers = torch.arange(first, first + count, device=device, dtype=torch.int32)
    return numbers.remainder_(_PERIOD).to(torch.float32)


def _rank_to_data_offset(rank: int) -> int:
    """Return what tells a rank's data from another's; small, so that sums stay exact."""
    return rank % _TELLING


def _make_data_offsets_of_ranks(world: RankWorld) -> Tensor:
    """Return what tells the data of each rank, in a column."""
    return torch.arange(world.size, device=world.device).remainder_(_TELLING).view(-1, 1)


def _make_expected_sum(pattern: Tensor, world: RankWorld) -> Tensor:
    """Return the sum over all ranks, each of which adds what tells its data to the pattern."""
    return pattern * world.size + sum(map(_rank_to_data_offset, range(world.size)))


def _prepare_all_reduce(count: int, world: RankWorld) -> PreparedOperation:
    pattern = _make_pattern(count, world.device)
    buffer = pattern + _rank_to_data_offset(world.rank)
    return buffer, lambda: dist.all_reduce(buffer), lambda: _make_expected_sum(pattern, world)


def _prepare_all_gather(count: int, world: RankWorld) -> PreparedOperation:
    pattern = _make_pattern(max(1, count // world.size), world.device)
    own = pattern + _rank_to_data_offset(world.rank)
    gathered = torch.zeros(own.numel() * world.size, device=world.device)
    gather = _find_renamed_function("all_gather_single", "all_gather_into_tensor")
    return (
        gathered,
        lambda: gather(gathered, own),
        lambda: (pattern + _make_data_offsets_of_ranks(world)).view(-1),
    )


def _prepare_reduce_scatter(count: int, world: RankWorld) -> PreparedOperation:
    part = max(1, count // world.size)
    whole = _make_pattern(part * world.size, world.device) + _rank_to_data_offset(world.rank)
    pattern = _make_pattern(part, world.device, first=part * world.rank)
    scattered = torch.zeros(part, device=world.device)
    scatter = _find_renamed_function("reduce_scatter_single", "reduce_scatter_tensor")
    return scattered, lambda: scatter(scattered, whole), lambda: _make_expected_sum(pattern, world)


def _prepare_all_to_all(count: int, world: RankWorld) -> PreparedOperation:
    part = max(1, count // world.size)
    sent = _make_pattern(part * world.size, world.device) + _rank_to_data_offset(world.rank)
    pattern = _make_pattern(part, world.device, first=part * world.rank)
    received = torch.zeros_like(sent)
    return (
        received,
        lambda: dist.all_to_all_single(received, sent),
        lambda: (pattern + _make_data_offsets_of_ranks(world)).view(-1),
    )


def _prepare_broadcast(count: int, world: RankWorld) -> PreparedOperation:
    pattern = _make_pattern(count, world.device)
    buffer = pattern.clone() if world.rank == 0 else torch.zeros_like(pattern)
    return buffer, lambda: dist.broadcast(buffer, 0), lambda: pattern


def _prepare_point_to_point(count: int, world: RankWorld) -> PreparedOperation:
    pattern = _make_pattern(count, world.device)
    target = (world.rank + world.receiver_offset) % world.size
    source = (world.rank - world.receiver_offset) % world.size
    sent, received = pattern + _rank_to_data_offset(world.rank), torch.zeros_like(pattern)
    return (
        received,
        lambda: exchange_tensors([(sent, target)], [(received, source)]),
        lambda: pattern + _rank_to_data_offset(source),
    )


def exchange_tensors(sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]) -> None:
    """Send and receive these tensors, to and from these ranks, all at once; wait for all."""
    work = [dist.P2POp(dist.isend, one, peer) for one, peer in sends]
    work += [dist.P2POp(dist.irecv, one, peer) for one, peer in receives]
    for request in dist.batch_isend_irecv(work) if work else ():
        request.wait()


def _prepare_host_to_device(count: int, world: RankWorld) -> PreparedOperation:
    host = _make_pattern(count, torch.device("cpu")).pin_memory()
    there = torch.zeros(count, device=world.device)
    # Compared with what the GPU makes itself: a second copy could be wrong in the same way.
    return (there, lambda: there.copy_(host, non_blocking=True), lambda: _make_pattern(count, world.device))


def _prepare_device_to_host(count: int, world: RankWorld) -> PreparedOperation:
    there = _make_pattern(count, world.device)
    host = torch.zeros(count).pin_memory()
    return (
        host,
        lambda: host.copy_(there, non_blocking=True),
        lambda: _make_pattern(count, torch.device("cpu")),
    )


_MAKERS: dict[CommOperation, Callable[[int, RankWorld], PreparedOperation]] = {
    CommOperation.all_reduce: _prepare_all_reduce,
    CommOperation.all_gather: _prepare_all_gather,
    CommOperation.reduce_scatter: _prepare_reduce_scatter,
    CommOperation.all_to_all: _prepare_all_to_all,
    CommOperation.broadcast: _prepare_broadcast,
    CommOperation.point_to_point: _prepare_point_to_point,
    CommOperation.host_to_device: _prepare_host_to_device,
    CommOperation.device_to_host: _prepare_device_to_host,
}
