"""Batches of a dataset that yields its samples in an order of its own: an IterableDataset.

Every reader reads the whole stream and takes its rows, by number. A reader that begins late, or
has others' rows to pass over, reads them too, unless the dataset has `iter_from`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard

from torch.utils.data import Dataset, IterableDataset

from hpckit.errors import UsageError
from hpckit.model.counted import format_count
from hpckit.model.parallel.share import BatchShare
from hpckit.runtime.generators import preserve_generators, seed_generators_for_sample
from hpckit.values import dataclass, field


class JumpingStream(Protocol):
    """A stream that can begin at any of its samples."""

    def iter_from(self, number: int) -> Iterator[Any]:
        """Yield the samples of an epoch from this number on, counted from 0, in every process."""


@dataclass(slots=True, kw_only=True)
class StreamedBatches(Dataset[Any]):
    """`batches[first]` is a data rank's share of the batch that begins with the sample `first`.

    `length` is the number of samples of an epoch; None if the stream is read once. Batches are best
    asked for in order: an earlier one begins the stream again.
    """

    dataset: IterableDataset[Any]
    length: int | None
    share: BatchShare
    seed: int
    collate: Callable[[list[Any]], Any]
    _next: int | None = field(default=None, init=False)
    _samples: Iterator[Any] = field(default_factory=lambda: iter(()), init=False)

    def __getitem__(self, first: int) -> Any:
        """Return this rank's rows, put together by `collate`; raises UsageError if it is short.

        A stream without a length must not end before them; one with a length must keep it.
        """
        numbers = self.share.sample_numbers(first)
        with preserve_generators():
            samples = [self._read_sample(number) for number in numbers]
            seed_generators_for_sample(self.seed, numbers.start)
            return self.collate(samples)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the position out: a started worker begins by itself."""
        names = ("dataset", "length", "share", "seed", "collate")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._next, self._samples = None, iter(())

    def _read_sample(self, number: int) -> Any:
        if self._next is None or not self._can_read_on_to_sample(number):
            self._start_reading_at_sample(number)
        while self._next != number:
            self._read_next_sample()
        return self._read_next_sample()

    def _can_read_on_to_sample(self, number: int) -> bool:
        if self._next is None or number < self._next:
            return False
        if number == self._next:
            return True
        return not can_start_at_sample(self.dataset) and self._epoch_of_sample(
            number
        ) == self._epoch_of_sample(self._next)

    def _epoch_of_sample(self, number: int) -> int:
        return 0 if self.length is None else number // self.length

    def _start_reading_at_sample(self, number: int) -> None:
        """Begin to read at a number, or before it.

        An epoch begins under the seed of its first sample. The body of a generator function begins
        when a sample is taken: after a jump that is the one before, as each has a seed of its own.
        """
        epoch = self._epoch_of_sample(number)
        first = epoch * (self.length or 0)
        seed_generators_for_sample(self.seed, first)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        if not can_start_at_sample(self.dataset):
            self._samples, self._next = iter(self.dataset), first
            return
        self._samples = iter(self.dataset.iter_from(max(number - 1 - first, 0)))
        self._next = number
        if number > first:
            seed_generators_for_sample(self.seed, first)
            next(self._samples, None)

    def _read_next_sample(self) -> Any:
        """Read one sample; at the end of an epoch, begin the next one."""
        number = self._next or 0
        seed_generators_for_sample(self.seed, number)
        try:
            sample = next(self._samples)
        except StopIteration:
            raise self._build_short_stream_error(number) from None
        self._next = number + 1
        if self.length is not None and self._next % self.length == 0:
            self._end_epoch()
        return sample

    def _end_epoch(self) -> None:
        """Raise UsageError if the stream has more samples than its length."""
        unread = object()
        if next(self._samples, unread) is not unread:
            raise UsageError(
                f"{_dataset_type_name(self.dataset)} has a length of {self.length}, and yields more samples",
                hint="let __len__ return the number of samples that each process reads in an "
                "epoch; a stream without __len__ is read once",
            )
        self._samples, self._next = iter(()), None

    def _build_short_stream_error(self, number: int) -> UsageError:
        if self.length is None:
            return UsageError(
                f"the dataset {_dataset_type_name(self.dataset)} ended after "
                f"{format_count(number, 'sample')}, and this step needs more",
                hint=f"it lasts for {number // self.share.batch_size} steps of "
                f"{self.share.batch_size} samples; to read it again, give it a __len__",
            )
        return UsageError(
            f"the dataset {_dataset_type_name(self.dataset)} has a length of {self.length}, and "
            f"ended after {format_count(number % self.length, 'sample')} of an epoch",
            hint="let it yield all samples in every process: run.batches takes each rank's and "
            "each worker's share itself",
        )


def can_start_at_sample(dataset: object) -> TypeGuard[JumpingStream]:
    """Return whether a stream can begin at a sample: `iter_from(number)`."""
    return hasattr(dataset, "iter_from")


def _dataset_type_name(dataset: Any) -> str:
    return type(dataset).__name__
