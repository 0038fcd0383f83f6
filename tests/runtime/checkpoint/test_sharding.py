"""Shares of what all ranks have alike."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from hpckit.runtime.checkpoint import placement

MIB = 1 << 20


def _tensors() -> dict[str, torch.Tensor]:
    shapes = {"embedding": (10_001, 512), "bias": (512,), "number": (), "row": (1, 4 * MIB)}
    return {key: torch.arange(torch.Size(shape).numel()).float().view(shape) for key, shape in shapes.items()}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_shares_hold_every_row_once(ranks: int) -> None:
    """Put together, the pieces of all ranks are the tensors."""
    tensors = _tensors()
    pieces = [
        piece for rank in range(ranks) for piece in placement.cut_own_tensor_pieces(tensors, rank, ranks)
    ]
    for key, whole in tensors.items():
        mine = sorted((piece for piece in pieces if piece.key == key), key=lambda one: one.start)
        assert {one.shape for one in mine} == {whole.shape}
        rows = [one.tensor for one in mine]
        assert torch.equal(torch.cat(rows) if whole.dim() else rows[0], whole)


def test_shares_are_even_though_one_tensor_is_large() -> None:
    """No rank has an eighth more than another where a single tensor is nearly all there is."""
    tensors = {"embedding": torch.zeros(50_000, 512), "bias": torch.zeros(512)}
    sizes = [
        sum(
            placement.count_tensor_bytes(piece.tensor)
            for piece in placement.cut_own_tensor_pieces(tensors, rank, 3)
        )
        for rank in range(3)
    ]
    assert sum(sizes) == sum(map(placement.count_tensor_bytes, tensors.values()))
    assert max(sizes) < min(sizes) * 9 / 8


def test_shares_are_whole_tensors_for_one_rank() -> None:
    """A rank alone cuts nothing."""
    tensors = _tensors()
    pieces = placement.cut_own_tensor_pieces(tensors, 0, 1)
    assert all(piece.tensor is tensors[piece.key] for piece in pieces)
    assert len(pieces) == len(tensors)


@given(
    sizes=some.dictionaries(some.text(max_size=3), some.integers(0, 50), max_size=40),
    ranks=some.integers(1, 12),
)
def test_share_out_gives_each_key_to_the_first_of_the_least_loaded(sizes: dict[str, int], ranks: int) -> None:
    """The largest first, each to the share with the least so far, the first of equals."""
    loads = [0] * ranks
    expected = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        expected[key] = loads.index(min(loads))
        loads[expected[key]] += sizes[key]
    assert placement.assign_keys_to_shares(sizes, ranks) == expected


def test_shares_are_worked_out_once() -> None:
    """Saves of one state share it out once: at a thousand ranks that takes a while."""
    tensors = _tensors()
    placement.find_own_tensor_rows.cache_clear()
    first, second = (placement.cut_own_tensor_pieces(tensors, 1, 3) for _ in range(2))
    assert [(one.key, one.start) for one in first] == [(one.key, one.start) for one in second]
    assert placement.find_own_tensor_rows.cache_info().misses == 1
    placement.cut_own_tensor_pieces(tensors | {"more": torch.zeros(3)}, 1, 3)
    assert placement.find_own_tensor_rows.cache_info().misses == 2, "another state is shared out by itself"
