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

from hpckit.features.interconnect.model_measurement import CommOperation
from hpckit.values import dataclass

ELEMENT = 4
"""Bytes of a float."""
_PERIOD = 251
"""Values repeat after a prime number of elements, so that a shifted part is noticed."""
_TELLING = 128


def _named(newer: str, older: str) -> Any:
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
    def stride(self) -> int:
        """How many ranks on the receiver of a message is: in the next node, if there is one."""
        return self.ranks_per_node if self.size > self.ranks_per_node else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedOperation:
    """An operation with its buffers: `begin` fills them, `act` communicates, `right` checks."""

    begin: Callable[[], object]
    act: Callable[[], object]
    right: Callable[[], bool]


def prepare_operation(operation: CommOperation, size: int, world: RankWorld) -> PreparedOperation:
    """Return an operation of `size` bytes; raises RuntimeError if memory does not suffice."""
    return _MAKERS[operation](max(1, size // ELEMENT), world)


def _pattern(count: int, device: torch.device, *, first: int = 0) -> Tensor:
    """Return `count` floats, that of element i being (first + i) mod 251."""
    numbers = torch.arange(first, first + count, device=device, dtype=torch.int32)
    return numbers.remainder_(_PERIOD).to(torch.float32)


def _same(found: Tensor, wanted: Tensor) -> bool:
    return bool(torch.equal(found, wanted))


def _rank_sum(ranks: int) -> int:
    """Return what the ranks' own numbers add to a sum."""
    return sum(_own(rank) for rank in range(ranks))


def _own(rank: int) -> int:
    """Return what tells a rank's data from another's; small, so that sums stay exact."""
    return rank % _TELLING


def _all_reduce(count: int, world: RankWorld) -> PreparedOperation:
    pattern = _pattern(count, world.device)
    buffer = torch.empty_like(pattern)

    def begin() -> None:
        buffer.copy_(pattern).add_(_own(world.rank))

    def right() -> bool:
        return _same(buffer, pattern * world.size + _rank_sum(world.size))

    return PreparedOperation(begin=begin, act=lambda: dist.all_reduce(buffer), right=right)


def _all_gather(count: int, world: RankWorld) -> PreparedOperation:
    part = max(1, count // world.size)
    pattern = _pattern(part, world.device)
    gathered = torch.empty(part * world.size, device=world.device)
    own = pattern + _own(world.rank)
    gather = _named("all_gather_single", "all_gather_into_tensor")

    def right() -> bool:
        parts = gathered.view(world.size, part)
        return all(_same(parts[rank], pattern + _own(rank)) for rank in range(world.size))

    return PreparedOperation(begin=gathered.zero_, act=lambda: gather(gathered, own), right=right)


def _reduce_scatter(count: int, world: RankWorld) -> PreparedOperation:
    part = max(1, count // world.size)
    whole = _pattern(part * world.size, world.device) + _own(world.rank)
    wanted = _pattern(part, world.device, first=part * world.rank) * world.size
    scattered = torch.empty(part, device=world.device)
    scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")

    def right() -> bool:
        return _same(scattered, wanted + _rank_sum(world.size))

    return PreparedOperation(
        begin=scattered.zero_, act=lambda: scatter(scattered, whole), right=right
    )


def _all_to_all(count: int, world: RankWorld) -> PreparedOperation:
    part = max(1, count // world.size)
    sent = _pattern(part * world.size, world.device) + _own(world.rank)
    wanted = _pattern(part, world.device, first=part * world.rank)
    received = torch.empty_like(sent)

    def right() -> bool:
        parts = received.view(world.size, part)
        return all(_same(parts[rank], wanted + _own(rank)) for rank in range(world.size))

    return PreparedOperation(
        begin=received.zero_,
        act=lambda: dist.all_to_all_single(received, sent),
        right=right,
    )


def _broadcast(count: int, world: RankWorld) -> PreparedOperation:
    pattern = _pattern(count, world.device)
    buffer = torch.empty_like(pattern)

    def begin() -> None:
        buffer.copy_(pattern) if world.rank == 0 else buffer.zero_()

    return PreparedOperation(
        begin=begin,
        act=lambda: dist.broadcast(buffer, 0),
        right=lambda: _same(buffer, pattern),
    )


def _point_to_point(count: int, world: RankWorld) -> PreparedOperation:
    pattern = _pattern(count, world.device)
    target = (world.rank + world.stride) % world.size
    source = (world.rank - world.stride) % world.size
    sent, received = pattern + _own(world.rank), torch.empty_like(pattern)

    def act() -> None:
        exchange([(sent, target)], [(received, source)])

    return PreparedOperation(
        begin=received.zero_,
        act=act,
        right=lambda: _same(received, pattern + _own(source)),
    )


def exchange(sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]) -> None:
    """Send and receive these tensors, to and from these ranks, all at once; wait for all."""
    work = [dist.P2POp(dist.isend, one, peer) for one, peer in sends]
    work += [dist.P2POp(dist.irecv, one, peer) for one, peer in receives]
    for one in dist.batch_isend_irecv(work) if work else ():
        one.wait()


def _host_to_device(count: int, world: RankWorld) -> PreparedOperation:
    host = _pattern(count, torch.device("cpu")).pin_memory()
    there = torch.empty(count, device=world.device)
    return PreparedOperation(
        begin=there.zero_,
        act=lambda: there.copy_(host, non_blocking=True),
        right=lambda: _same(there.cpu(), host),
    )


def _device_to_host(count: int, world: RankWorld) -> PreparedOperation:
    there = _pattern(count, world.device)
    host = torch.empty(count).pin_memory()
    return PreparedOperation(
        begin=host.zero_,
        act=lambda: host.copy_(there, non_blocking=True),
        right=lambda: _same(there.cpu(), host),
    )


_MAKERS: dict[CommOperation, Callable[[int, RankWorld], PreparedOperation]] = {
    CommOperation.all_reduce: _all_reduce,
    CommOperation.all_gather: _all_gather,
    CommOperation.reduce_scatter: _reduce_scatter,
    CommOperation.all_to_all: _all_to_all,
    CommOperation.broadcast: _broadcast,
    CommOperation.point_to_point: _point_to_point,
    CommOperation.host_to_device: _host_to_device,
    CommOperation.device_to_host: _device_to_host,
}
