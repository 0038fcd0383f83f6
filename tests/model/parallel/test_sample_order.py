"""Promises of the order of samples: exact at any number of data ranks, wherever it is cut."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.parallel.sample_order import KeyedPermutation, SampleOrder, hash_numbers
from hpckit.model.parallel.share import compute_batch_share

LENGTHS = st.integers(1, 200)
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9)), min_size=1, max_size=8)
"""Numbers of data ranks, each with the steps until the next restart."""
PINNED = [0, 1, 2, 9, 3, 5, 7, 6, 8, 4]
PINNED_FAR = 508_738_710
PINNED_MIX = 7_702_586_659_592_502_839


@given(length=st.integers(1, 500), key=SEEDS)
def test_permutation_has_each_number_once(length: int, key: int) -> None:
    """Whatever the length: its places hold exactly the numbers below it."""
    order = KeyedPermutation(length, key)
    assert sorted(order[place] for place in range(length)) == list(range(length))


@given(length=st.integers(1, 10**15), key=SEEDS, place=st.integers(0, 10**15))
def test_permutation_of_very_many_needs_no_list(length: int, key: int, place: int) -> None:
    """A place of a dataset that no list could hold has a number, and a neighbour has another."""
    order = KeyedPermutation(length, key)
    place %= length
    assert 0 <= order[place] < length
    assert length == 1 or order[place] != order[(place + 1) % length]


def test_permutation_refuses_places_outside() -> None:
    """It is a sequence of its length, no more."""
    order = KeyedPermutation(5, key=1)
    for place in (-1, 5):
        with pytest.raises(IndexError, match=f"place {place} of 5"):
            order[place]


def test_permutation_never_changes() -> None:
    """Runs continue with a later hpckit: these numbers may never change."""
    assert [KeyedPermutation(10, key=7)[place] for place in range(10)] == PINNED
    assert KeyedPermutation(10**9, key=7)[123_456_789] == PINNED_FAR
    assert hash_numbers(1, 2, 3) == PINNED_MIX


@pytest.mark.parametrize("length", [3, 4, 5])
def test_permutations_are_about_equally_likely(length: int) -> None:
    """Chi-square over all orders of a few numbers: at most five deviations above its mean."""
    draws = 1000 * math.factorial(length) // 6
    seen = Counter(
        tuple(KeyedPermutation(length, hash_numbers(3, key))[place] for place in range(length))
        for key in range(draws)
    )
    kinds = math.factorial(length)
    mean = draws / kinds
    chi = sum((seen[permutation] - mean) ** 2 / mean for permutation in permutations(range(length)))
    assert chi < kinds - 1 + 5 * math.sqrt(2 * (kinds - 1))


@given(length=LENGTHS, batch_size=st.integers(1, 40), seed=SEEDS, shuffle=st.booleans())
def test_each_sample_comes_once_in_each_epoch(
    length: int, batch_size: int, seed: int, *, shuffle: bool
) -> None:
    """The last batch of an epoch continues in the next one: none is lost, none comes twice."""
    order = SampleOrder(length=length, batch_size=batch_size, seed=seed, shuffle=shuffle)
    steps = -(-3 * length // batch_size)
    share = compute_batch_share(batch_size, 0, 1)
    seen = [
        index
        for step in range(steps)
        for index in order.indices_of_samples(share.sample_numbers(step * batch_size))
    ]
    for epoch in range(3):
        assert sorted(seen[epoch * length : (epoch + 1) * length]) == list(range(length))


@given(length=LENGTHS, batch_size=st.integers(1, 40), seed=SEEDS)
def test_dropped_rest_leaves_whole_batches_of_one_epoch(length: int, batch_size: int, seed: int) -> None:
    """With `drop_last` no batch has a sample twice, and an epoch leaves out less than a batch."""
    order = SampleOrder(length=length, batch_size=batch_size, seed=seed, drop_last=True)
    share = compute_batch_share(batch_size, 0, 1)
    per_epoch = order.epoch_length // batch_size
    assert 0 <= length - order.epoch_length < batch_size
    for epoch in range(2):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        seen = [
            index
            for step in steps
            for index in order.indices_of_samples(share.sample_numbers(step * batch_size))
        ]
        assert len(set(seen)) == len(seen) == order.epoch_length
        assert {order.epoch_of_step(step) for step in steps} <= {epoch}


@given(length=LENGTHS, batch_size=st.integers(8, 40), seed=SEEDS, sizes=SIZES, drop=st.booleans())
def test_restarts_at_other_sizes_change_no_batch(
    length: int, batch_size: int, seed: int, sizes: list[tuple[int, int]], *, drop: bool
) -> None:
    """At 4, 3, 2, 4 … data ranks, changed at any step, the ranks' rows make up the same batch."""
    order = SampleOrder(length=length + batch_size, batch_size=batch_size, seed=seed, drop_last=drop)
    alone = compute_batch_share(batch_size, 0, 1)
    step = 0
    for size, steps in sizes:
        for here in range(step, step + steps):
            shares = [compute_batch_share(batch_size, rank, size) for rank in range(size)]
            first = here * batch_size
            rows = [
                index for share in shares for index in order.indices_of_samples(share.sample_numbers(first))
            ]
            assert rows == order.indices_of_samples(alone.sample_numbers(first))
        step += steps // 2  # the rest was not saved, and is done again


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """Two epochs, or two seeds, do not begin alike; without shuffling all are in order."""
    first = SampleOrder(length=1000, batch_size=1000, seed=1)
    other = replace(first, seed=2)
    orders = [first.indices_of_samples(range(1000)), first.indices_of_samples(range(1000, 2000))]
    orders.append(other.indices_of_samples(range(1000)))
    assert all(one[:20] != two[:20] for one, two in permutations(orders, 2))
    assert replace(first, shuffle=False).indices_of_samples(range(998, 1002)) == [998, 999, 0, 1]
