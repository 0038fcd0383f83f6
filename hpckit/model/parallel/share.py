"""The part of each batch that a data rank works on. Pure."""

from __future__ import annotations

from dataclasses import dataclass


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

    def numbers(self, step: int) -> range:
        """Return the sample numbers of these rows in a step, counted from the run's first sample.

        Example: the second half of a batch of 8 has the numbers 12 to 15 in step 1.
        """
        first = step * self.batch_size
        return range(first + self.start, first + self.stop)

    @property
    def weight(self) -> float:
        """The part of the whole batch that this is."""
        return len(self) / self.batch_size

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.stop - self.start


def share_batch(batch_size: int, data_rank: int, data_size: int) -> BatchShare:
    """Return a data rank's share of a batch; raises ValueError if there is less than a row each.

    Example: `share_batch(8, 1, 3)` has rows 3 to 5.
    """
    if not 0 <= data_rank < data_size:
        raise ValueError(f"data rank {data_rank} of {data_size}")
    if batch_size < data_size:
        raise ValueError(f"a batch of {batch_size} rows for {data_size} data ranks")
    even, more = divmod(batch_size, data_size)
    start = data_rank * even + min(data_rank, more)
    return BatchShare(start=start, stop=start + even + (data_rank < more), batch_size=batch_size)
