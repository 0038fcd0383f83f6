"""`run.batches`: the batch of each step, read ahead by worker processes.

Which samples a batch has follows from the step alone. It decides nothing about steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from itertools import count
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from hpckit.errors import HpckitError, UsageError
from hpckit.model.counted import format_count
from hpckit.model.parallel.sample_order import SampleOrder
from hpckit.model.parallel.share import BatchShare
from hpckit.model.telemetry.rank_steps import DATA_PHASE
from hpckit.runtime.data.streamed import StreamedBatches, can_start_at_sample
from hpckit.runtime.generators import derive_seed, preserve_generators, seed_generators_for_sample
from hpckit.values import dataclass, field

_DEATH_S = 0.5
"""For the signal that reports a worker's death: it comes after the end of its pipes."""


class StepPlace(Protocol):
    """Tells which step it is, and which part of a batch is this rank's: a Run."""

    @property
    def step(self) -> int | None:
        """Number of the current step; None before the first."""

    @property
    def seed(self) -> int:
        """Seed of the run, the same on every rank."""

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""

    def share(self, batch_size: int) -> BatchShare:
        """Return this rank's share of a batch."""

    def batches_before(self, step: int) -> Fraction:
        """Return how many batches of the size asked for all steps before this one had."""

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Count what is done within as this phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What `run.batches` was asked for. Raises UsageError for numbers that cannot be."""

    batch_size: int
    workers: int = 0
    shuffle: bool | None = None
    drop_last: bool = False
    collate: Callable[[list[Any]], Any] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            hint = "write name='replay', for example, or leave it out"
            raise UsageError(f"run.batches(name={self.name!r}) needs a text", hint=hint)
        _check_whole_number("batch_size", self.batch_size, least=1)
        _check_whole_number("workers", self.workers, least=0)


@dataclass(slots=True, kw_only=True)
class Batches(Iterator[Any]):
    """The batches of a run, one for each step: `next(batches)` within `run.steps()`.

    `share` is the part of each batch that this rank gets. `reader[first]` makes the batch that
    begins with the sample `first`. `full_batch_size` is the size that was asked for; steps have
    `batch_size` samples, which is another number with `parallel.batch=scale`.
    """

    reader: IndexedBatches | StreamedBatches = field(repr=False)
    share: BatchShare
    full_batch_size: int
    workers: int
    epoch_length: int | None
    _place: StepPlace = field(repr=False)
    _ahead: Iterator[Any] | None = field(default=None, init=False, repr=False)
    _expected: int | None = field(default=None, init=False)
    _given: int | None = field(default=None, init=False)

    def __next__(self) -> Any:
        """Return this rank's rows of the current step's batch.

        Raises UsageError outside of `run.steps()` and for a second batch in one step.
        """
        step = self._place.step
        if step is None:
            raise UsageError(
                "next(batches) was called before the first step: the step decides its batch",
                hint="call it within the loop: `for step in run.steps(n): batch = next(batches)`",
            )
        if step == self._given:
            raise UsageError(
                f"next(batches) was called twice in step {step}, which has one batch",
                hint="to accumulate gradients, cut the batch into parts: batch_size counts all "
                "parts on all ranks",
            )
        with self._place.timed(DATA_PHASE):
            if self._ahead is None or step != self._expected:
                self._ahead = self._start_reading_at_step(step)
            batch = self._read_next_batch(self._ahead)
        if isinstance(batch, HpckitError):
            raise batch
        self._given, self._expected = step, step + 1
        return batch

    def _read_next_batch(self, ahead: Iterator[Any]) -> Any:
        """Return what is read next; raises RuntimeError if a worker has died."""
        try:
            return next(ahead)
        except (ConnectionError, EOFError) as error:
            # It died while it sent a batch. Torch's own error, which names it, comes by a signal.
            time.sleep(_DEATH_S)
            raise RuntimeError("DataLoader worker exited unexpectedly, in a batch") from error

    def __len__(self) -> int:
        """Return the number of whole batches in an epoch; raises TypeError for an endless one."""
        if self.epoch_length is None:
            raise TypeError("a stream without a length has no number of batches")
        return self.epoch_length // self.full_batch_size

    @property
    def batch_size(self) -> int:
        """Number of samples of a step, on all ranks together."""
        return self.share.batch_size

    def epoch(self, step: int) -> int:
        """Return the epoch, from 0, in which a step begins; 0 for a stream that is read once."""
        if self.epoch_length is None:
            return 0
        return self._first_sample_of_step(step) // self.epoch_length

    def numbers(self, step: int) -> range:
        """Return the numbers of this rank's samples in a step, counted from the run's first.

        Ranks with the same data rank have the same.
        """
        return self.share.sample_numbers(self._first_sample_of_step(step))

    def _first_sample_of_step(self, step: int) -> int:
        before = self._place.batches_before(step)
        first = before * self.full_batch_size
        if first.denominator > 1:
            raise UsageError(
                f"step {step} begins after {before} batches of batch_size={self.full_batch_size}, in the "
                "middle of a sample",
                hint="the run was trained with another batch_size and parallel.batch=scale; take "
                f"that one, or a multiple of {before.denominator}",
            )
        return int(first)

    def close(self) -> None:
        """End the workers, as the end of a loop does; a later `next` starts them again."""
        self._ahead = self._expected = None

    def _start_reading_at_step(self, step: int) -> Iterator[Any]:
        self.close()
        loader = DataLoader(
            _ErrorsAsValues(self.reader),
            batch_size=None,
            sampler=count(self._first_sample_of_step(step), self.batch_size),
            num_workers=self.workers,
            collate_fn=_return_unchanged,
            pin_memory=self._place.device.type == "cuda",
            # Of its own, as torch draws from it: the run's must be where the checkpoint left it.
            generator=torch.Generator(),
        )
        return iter(loader)


@dataclass(frozen=True, slots=True)
class _ErrorsAsValues(Dataset[Any]):
    """Returns our own errors: torch would raise one of a worker with its traceback as message."""

    reader: Dataset[Any]

    def __getitem__(self, first: int) -> Any:
        try:
            return self.reader[first]
        except HpckitError as error:
            return error


def make_batches(dataset: Any, options: BatchOptions, place: StepPlace, key: int | str = 0) -> Batches:
    """Return the batches of a dataset; raises UsageError for one that cannot be exact.

    Those with another `key` have an order and random numbers of their own.
    """
    share = place.share(options.batch_size)
    seed = place.seed if key == 0 else derive_seed(place.seed, f"batches {key!r}")
    collate = options.collate or default_collate
    if isinstance(dataset, IterableDataset):
        _check_stream_options(dataset, options)
        length = _find_length(dataset)
        if length == 0:
            raise UsageError(
                f"{type(dataset).__name__} has a length of 0",
                hint="let __len__ return the number of samples of an epoch, or leave it out",
            )
        reader: StreamedBatches | IndexedBatches = StreamedBatches(
            dataset=dataset, length=length, share=share, seed=seed, collate=collate
        )
    else:
        order = _build_sample_order(dataset, options, seed)
        length = order.epoch_length
        reader = IndexedBatches(dataset=dataset, order=order, share=share, collate=collate)
    return Batches(
        reader=reader,
        share=share,
        full_batch_size=options.batch_size,
        workers=options.workers,
        epoch_length=length,
        _place=place,
    )


@dataclass(slots=True)
class RunBatches:
    """The batches of a run until its loop ends, each with a key: its name, or its number.

    Those made within a step are counted from 0 in each step, as a restart repeats only later steps.
    """

    made: list[Batches] = field(default_factory=list)
    _lasting: list[int | str] = field(default_factory=list)
    _of_step: list[int | str] = field(default_factory=list)
    _step: int | None = None

    def add_batches(self, dataset: Any, options: BatchOptions, place: StepPlace, step: int | None) -> Batches:
        """Return those of a dataset; `step` is None outside of the loop; raises UsageError."""
        key = self.choose_batches_key(options.name, step)
        self.made.append(make_batches(dataset, options, place, key))
        return self.made[-1]

    def choose_batches_key(self, name: str | None, step: int | None) -> int | str:
        """Return what tells the next ones apart from the others; raises UsageError."""
        if step != self._step:
            self._of_step, self._step = [], step
        known = [*self._lasting, *self._of_step]
        if name in known:
            raise UsageError(
                f"run.batches(name={name!r}) was already called with that name: both would have "
                "the same order and the same random numbers",
                hint="give each a name of its own, or none",
            )
        key = _count_unnamed(known) if name is None else name
        (self._lasting if step is None else self._of_step).append(key)
        return key

    def check_ranks_made_same_batches(self, is_alike: Callable[[int], bool]) -> None:
        """Raise UsageError if `is_alike`, which asks all ranks, denies that they made as many."""
        if not is_alike(_count_unnamed(self._lasting)):
            raise UsageError(
                "this rank called run.batches() "
                f"{format_count(_count_unnamed(self._lasting), 'time')} without a name, others did "
                "not, and the number of a call decides its order",
                hint="make the same calls on all ranks, or give those of some ranks a name=",
            )

    @property
    def total_batch_size(self) -> int:
        """Number of samples of a step, of all of them."""
        return sum(batches.batch_size for batches in self.made)

    def close(self) -> None:
        """End all workers."""
        while self.made:
            self.made.pop().close()


def _count_unnamed(keys: Iterable[int | str]) -> int:
    return sum(isinstance(key, int) for key in keys)


def _build_sample_order(dataset: Any, options: BatchOptions, seed: int) -> SampleOrder:
    length = _find_length(dataset)
    if length is None or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"run.batches() got a {type(dataset).__name__}, which is not a dataset",
            hint="it takes what has __getitem__ and __len__, or a torch.utils.data.IterableDataset "
            "(its __iter__ may be a generator)",
        )
    order = SampleOrder(
        length=length,
        batch_size=options.batch_size,
        seed=seed,
        shuffle=options.shuffle is not False,
        drop_last=options.drop_last,
    )
    if order.epoch_length == 0:
        raise UsageError(
            f"a dataset of {format_count(length, 'sample')} has no whole batch of {options.batch_size}",
            hint="take a smaller batch_size"
            + (", or drop_last=False, which continues in the next epoch" if length else ""),
        )
    return order


def _check_stream_options(dataset: IterableDataset[Any], options: BatchOptions) -> None:
    name = type(dataset).__name__
    if options.shuffle:
        raise UsageError(
            f"{name} is an IterableDataset, which has an order of its own: shuffle=True cannot be",
            hint="let it shuffle by itself; its set_epoch(epoch), if it has one, is called",
        )
    if options.drop_last:
        raise UsageError(
            f"{name} is an IterableDataset, whose last batch continues in the next epoch: "
            "drop_last=True is not possible",
            hint="let it end its epoch after a whole number of batches",
        )
    if options.workers > 1 and not can_start_at_sample(dataset):
        raise UsageError(
            f"{name} is an IterableDataset without iter_from: each of {options.workers} workers "
            "would read the whole stream",
            hint="take workers=1, which reads ahead, or give it `iter_from(number)`, an iterator "
            "that begins at a sample",
        )


def _find_length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _check_whole_number(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"run.batches({name}={value!r}) is not a whole number of {least} or more",
            hint=f"write {name}={max(least, 4)}, for example",
        )


def _return_unchanged(batch: Any) -> Any:
    return batch


@dataclass(slots=True, kw_only=True)
class IndexedBatches(Dataset[Any]):
    """Batches of a dataset whose samples have an index: `dataset[7]`.

    `batches[first]` is a data rank's share of the batch that begins with the sample `first`.
    Samples are numbered from the run's first, over all epochs. It keeps no position.
    """

    dataset: Any
    order: SampleOrder
    share: BatchShare
    collate: Callable[[list[Any]], Any]

    def __getitem__(self, first: int) -> Any:
        """Return this rank's rows of a batch, put together by `collate`."""
        numbers = self.share.sample_numbers(first)
        with preserve_generators():
            samples = self._read_samples(numbers)
            seed_generators_for_sample(self.order.seed, numbers.start)
            return self.collate(samples)

    def _read_samples(self, numbers: range) -> list[Any]:
        indices = self.order.indices_of_samples(numbers)
        # As torch's DataLoader does: datasets that read many samples at once have this method.
        at_once: Callable[[Sequence[int]], Any] | None = getattr(self.dataset, "__getitems__", None)
        if at_once is not None:
            seed_generators_for_sample(self.order.seed, numbers.start)
            return list(at_once(indices))
        samples = []
        for number, index in zip(numbers, indices, strict=True):
            seed_generators_for_sample(self.order.seed, number)
            samples.append(self.dataset[index])
        return samples
