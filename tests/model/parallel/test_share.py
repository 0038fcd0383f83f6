"""Promises of shares: who works on which rows, in how many pieces, while replicas come and go."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.parallel.sample_order import SampleOrder
from hpckit.model.parallel.settings import BatchRule, Parallel
from hpckit.model.parallel.share import (
    compute_batch_share,
    count_equal_microbatches_to_fit,
    count_microbatches_to_fit_memory,
    split_rows,
)

SIZES = st.integers(1, 9)


@given(rows=st.integers(1, 60), full=SIZES, lost=st.integers(0, 8))
def test_no_piece_has_more_rows_than_were_planned(rows: int, full: int, lost: int) -> None:
    """All data ranks cut their rows into as many pieces, none larger than in the full layout."""
    size = min(max(full - lost, 1), rows)
    shares = [compute_batch_share(rows, rank, size) for rank in range(size)]
    planned = -(-rows // full)
    count = count_microbatches_to_fit_memory(rows, size, full)
    for share in shares:
        pieces = split_rows(len(share), count)
        assert list(chain(*(range(len(share))[piece] for piece in pieces))) == list(range(len(share)))
        assert max(piece.stop - piece.start for piece in pieces) <= planned
    assert (count == 1) is (max(map(len, shares)) <= planned)


@given(rows=st.integers(1, 60), full=SIZES, lost=st.integers(0, 8), multiple=st.sampled_from((1, 2, 4)))
def test_even_pieces_are_even_on_every_rank(rows: int, full: int, lost: int, multiple: int) -> None:
    """A pipeline's pieces have one size, which it takes; else the batch stays whole."""
    size = min(max(full - lost, 1), rows)
    count = count_equal_microbatches_to_fit(rows, size, full, lambda each: each % multiple == 0)
    if count > 1:
        for rank in range(size):
            share = len(compute_batch_share(rows, rank, size))
            assert share % count == 0
            assert share // count % multiple == 0
            assert share // count <= -(-rows // full)


@given(
    length=st.integers(1, 50),
    each=st.integers(1, 5),
    chain_of_sizes=st.lists(st.tuples(SIZES, st.integers(0, 9), st.integers(0, 9)), max_size=8),
    seed=st.integers(0, 9),
    full=SIZES,
)
def test_scaled_batches_have_each_sample_once_and_in_order(
    length: int, each: int, chain_of_sizes: list[tuple[int, int, int]], seed: int, full: int
) -> None:
    """Over any chain of sizes, each ended at any step after its last save: no gap, no repetition.

    A size does some steps that are saved, and some more that are lost and done again by the next.
    """
    asked = each * full
    order = SampleOrder(length=length, batch_size=asked, seed=seed)
    position, seen = Fraction(0), list[int]()
    for size, saved, lost in chain_of_sizes:
        here, numbers = position, list[int]()
        for step in range(saved + lost):
            first = here * asked
            assert first.denominator == 1
            shares = [compute_batch_share(each * size, rank, size) for rank in range(size)]
            assert {len(share) for share in shares} == {each}
            numbers += chain(*(share.sample_numbers(int(first)) for share in shares))
            here += Fraction(size, full)
            position = here if step < saved else position
        seen += numbers[: saved * each * size]
    assert seen == list(range(len(seen)))
    indices = order.indices_of_samples(range(len(seen)))
    for epoch in range(len(seen) // length):
        assert sorted(indices[epoch * length : (epoch + 1) * length]) == list(range(length))


def test_batch_is_kept_unless_asked_otherwise() -> None:
    """Scaling changes what a run learns, so that it is never the default."""
    assert Parallel().batch is BatchRule.keep
