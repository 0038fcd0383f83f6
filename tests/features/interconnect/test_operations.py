"""A wrong result is noticed: one rank's data is changed on the way."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hpckit.features.interconnect.measure import count_repeats
from hpckit.features.interconnect.model import CommOperation
from hpckit.features.interconnect.operations import RankWorld, prepare_operation

FOUR = RankWorld(rank=1, size=4, ranks_per_node=2, device=torch.device("cpu"))


def test_a_flipped_bit_in_a_sum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right sum over four ranks is accepted, and not one with another last bit."""

    def all_reduce(buffer: torch.Tensor) -> None:
        # The others have the same pattern, plus 0, 2 and 3 instead of 1.
        buffer.copy_((buffer - 1) * 4 + 6)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    result, act, wanted = prepare_operation(CommOperation.all_reduce, 4096, FOUR)
    act()
    assert torch.equal(result, wanted())

    def corrupt(buffer: torch.Tensor) -> None:
        all_reduce(buffer)
        buffer.view(torch.int32)[700] ^= 1

    monkeypatch.setattr(dist, "all_reduce", corrupt)
    result, act, wanted = prepare_operation(CommOperation.all_reduce, 4096, FOUR)
    act()
    assert not torch.equal(result, wanted())


def test_messages_cross_nodes_where_there_are_several() -> None:
    """With two ranks on each of two nodes the neighbour is two ranks on; on one node the next."""
    assert FOUR.receiver_offset == 2
    assert RankWorld(rank=0, size=4, ranks_per_node=4, device=torch.device("cpu")).receiver_offset == 1


@pytest.mark.parametrize(("estimate", "repeats"), [(1e-6, 30), (0.02, 12), (3.0, 5), (0.0, 30)])
def test_repeats_fill_a_slot_of_time(estimate: float, repeats: int) -> None:
    """At least five, at most thirty."""
    assert count_repeats(0.25, estimate) == repeats
