"""How far training is, and which samples each step has: that follows from the step alone. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of training: steps done, and samples seen by all ranks together.

    `batches` is how many batches of the size that was asked for the steps had; steps may have had
    smaller ones (`parallel.batch`).
    """

    step: int
    samples: int = 0
    batches: Fraction = Fraction(0)


_MASK = (1 << 64) - 1
_ROUNDS = 12
"""With fewer, the orders of five numbers are visibly not equally likely (chi-square); 12 are."""


def hash_numbers(*numbers: int) -> int:
    """Return a number of 64 bits that looks random and follows from these numbers.

    The finaliser of SplitMix64 (Steele, Lea and Flood, 2014), applied to one after the other.
    """
    bits = 0
    for number in numbers:
        bits = (bits + number + 0x9E3779B97F4A7C15) & _MASK
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
        bits ^= bits >> 31
    return bits


@dataclass(slots=True)
class KeyedPermutation:
    """An order of the numbers below `length`, 1 or more; another one for each `key`.

    `permutation[place]` is the number at a place, and takes a few microseconds at any length. It is
    a Feistel network over a rectangle that is hardly larger than `length` (Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002): half of a place is moved by an amount that
    follows from the other half, in turn. Places outside are moved on until they are inside. Made of
    whole numbers alone, it is the same on every machine and with every release of Python and torch,
    which `torch.randperm` and `random.shuffle` do not promise.

    Example: `sorted(KeyedPermutation(5, key=1)[place] for place in range(5))` is 0 to 4.
    """

    length: int
    key: int
    _columns: int = field(init=False)
    _rows: int = field(init=False)
    _round_keys: tuple[tuple[int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        self._columns = math.isqrt(max(self.length - 1, 0)) + 1
        self._rows = -(-self.length // self._columns)
        keys = [hash_numbers(self.key, number) for number in range(_ROUNDS)]
        self._round_keys = tuple(zip(keys[::2], keys[1::2], strict=True))

    def __getitem__(self, place: int) -> int:
        """Return the number at a place, from 0 to `length` - 1; raises IndexError."""
        if not 0 <= place < self.length:
            raise IndexError(f"place {place} of {self.length}")
        while (place := self._apply_feistel_rounds(place)) >= self.length:
            pass
        return place

    def _apply_feistel_rounds(self, place: int) -> int:
        row, column = divmod(place, self._columns)
        for one, other in self._round_keys:
            row = (row + hash_numbers(one ^ column)) % self._rows
            column = (column + hash_numbers(other ^ row)) % self._columns
        return row * self._columns + column


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """The order in which a run sees the `length` samples of a dataset, epoch after epoch.

    Samples have a number, which counts from the run's first over all epochs: step `s` has the
    numbers from `s * batch_size` on. Each epoch has an order of its own (`shuffle`), and has each
    sample exactly once. The last batch of an epoch continues in the next one; with `drop_last` it
    is left out, if it is not whole. So every batch has `batch_size` samples.

    Example: `SampleOrder(length=10, batch_size=4).indices(range(8, 12))` has the last two samples
    of the first epoch, then the first two of the second.
    """

    length: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    @property
    def epoch_length(self) -> int:
        """Number of samples that an epoch has; 0 if `drop_last` leaves none."""
        return self.length - self.length % self.batch_size if self.drop_last else self.length

    def epoch_of_step(self, step: int) -> int:
        """Return the epoch, from 0, in which a step begins."""
        return step * self.batch_size // self.epoch_length

    def indices_of_samples(self, numbers: range) -> list[int]:
        """Return the dataset's indices of these sample numbers, which are consecutive."""
        return [
            index for epoch in self._split_into_epochs(numbers) for index in self._indices_in_epoch(*epoch)
        ]

    def _split_into_epochs(self, numbers: range) -> Iterator[tuple[int, range]]:
        start = numbers.start
        while start < numbers.stop:
            epoch, place = divmod(start, self.epoch_length)
            count = min(numbers.stop - start, self.epoch_length - place)
            yield epoch, range(place, place + count)
            start += count

    def _indices_in_epoch(self, epoch: int, places: range) -> list[int]:
        if not self.shuffle:
            return list(places)
        order = KeyedPermutation(self.length, key=hash_numbers(self.seed, epoch))
        return [order[place] for place in places]
