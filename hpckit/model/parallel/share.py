"""The part of each batch that a data rank works on, and how it is cut. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShare:
    """Rows of a global batch that one data rank works on.

    Use: `inputs[share.rows]`. `weight` is the part of the whole batch, from 0 to 1. Shares differ
    by one row at most; the first ones are the larger ones.
    """

    start: int
    stop: int
    batch_size: int

    @property
    def rows(self) -> slice:
        """The rows, to index a batch with."""
        return slice(self.start, self.stop)

    def sample_numbers(self, first: int) -> range:
        """Return the sample numbers of these rows in a batch that begins with the sample `first`.

        Example: the second half of a batch of 8 has the numbers 12 to 15 if it begins with 8.
        """
        return range(first + self.start, first + self.stop)

    @property
    def weight(self) -> float:
        """The part of the whole batch that this is."""
        return len(self) / self.batch_size

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.stop - self.start


def compute_batch_share(batch_size: int, data_rank: int, data_size: int) -> BatchShare:
    """Return a data rank's share of a batch; raises ValueError if there is less than a row each.

    Example: `compute_batch_share(8, 1, 3)` has rows 3 to 5.
    """
    if not 0 <= data_rank < data_size:
        raise ValueError(f"data rank {data_rank} of {data_size}")
    if batch_size < data_size:
        raise ValueError(f"a batch of {batch_size} rows for {data_size} data ranks")
    even, more = divmod(batch_size, data_size)
    start = data_rank * even + min(data_rank, more)
    return BatchShare(start=start, stop=start + even + (data_rank < more), batch_size=batch_size)


def count_microbatches_to_fit_memory(batch_size: int, data_size: int, full_data_size: int) -> int:
    """Return into how many pieces data ranks cut their rows to need no more memory than planned.

    No piece has then more rows than a rank has of the batch with `full_data_size` data ranks. It
    is the same number on every data rank, as they gather parameters together.

    Example: a batch of 16 rows, planned for 4 data ranks, is cut into 2 pieces on 3 or 2 of them.
    """
    planned = _divide_rounding_up(batch_size, full_data_size)
    return _divide_rounding_up(_divide_rounding_up(batch_size, data_size), planned)


def count_equal_microbatches_to_fit(
    batch_size: int, data_size: int, full_data_size: int, fits: Callable[[int], bool]
) -> int:
    """Return the same for pieces that all have the same number of rows, which `fits`.

    Falls back to 1 if no number of pieces does that on every data rank.
    """
    least = count_microbatches_to_fit_memory(batch_size, data_size, full_data_size)
    if least == 1:
        return 1
    sizes = {batch_size // data_size, _divide_rounding_up(batch_size, data_size)}
    counts = range(least, min(sizes) + 1)
    return next((n for n in counts if all(s % n == 0 and fits(s // n) for s in sizes)), 1)


def split_rows(rows: int, count: int) -> list[slice]:
    """Return the rows of each of `count` pieces, whose sizes differ by one at most."""
    ends = [rows * turn // count for turn in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _divide_rounding_up(number: int, divisor: int) -> int:
    return -(-number // divisor)
