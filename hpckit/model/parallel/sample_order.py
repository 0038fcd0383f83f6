"""Which samples each step trains on: it follows from the step, never from what was read. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpckit.model.parallel.permutation import KeyedPermutation, mixed


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

    def epoch(self, step: int) -> int:
        """Return the epoch, from 0, in which a step begins."""
        return step * self.batch_size // self.epoch_length

    def indices(self, numbers: range) -> list[int]:
        """Return the dataset's indices of these sample numbers, which are consecutive."""
        return [index for epoch in self._epochs(numbers) for index in self._of_epoch(*epoch)]

    def _epochs(self, numbers: range) -> Iterator[tuple[int, range]]:
        """Yield the epochs that the numbers lie in, each with their places in its order."""
        start = numbers.start
        while start < numbers.stop:
            epoch, place = divmod(start, self.epoch_length)
            count = min(numbers.stop - start, self.epoch_length - place)
            yield epoch, range(place, place + count)
            start += count

    def _of_epoch(self, epoch: int, places: range) -> list[int]:
        if not self.shuffle:
            return list(places)
        order = KeyedPermutation(self.length, key=mixed(self.seed, epoch))
        return [order[place] for place in places]
