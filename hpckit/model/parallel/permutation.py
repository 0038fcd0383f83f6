"""A shuffled order of very many numbers that needs no list of them. Pure.

The order is made of whole numbers alone, so it is the same on every machine and with every release
of Python and torch, which `torch.randperm` and `random.shuffle` do not promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_MASK = (1 << 64) - 1
_ROUNDS = 12
"""With fewer, the orders of five numbers are visibly not equally likely (chi-square); 12 are."""


def mixed(*numbers: int) -> int:
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
    follows from the other half, in turn. Places outside are moved on until they are inside.

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
        keys = [mixed(self.key, number) for number in range(_ROUNDS)]
        self._round_keys = tuple(zip(keys[::2], keys[1::2], strict=True))

    def __getitem__(self, place: int) -> int:
        """Return the number at a place, from 0 to `length` - 1; raises IndexError."""
        if not 0 <= place < self.length:
            raise IndexError(f"place {place} of {self.length}")
        while (place := self._moved(place)) >= self.length:
            pass
        return place

    def _moved(self, place: int) -> int:
        row, column = divmod(place, self._columns)
        for one, other in self._round_keys:
            row = (row + mixed(one ^ column)) % self._rows
            column = (column + mixed(other ^ row)) % self._columns
        return row * self._columns + column
