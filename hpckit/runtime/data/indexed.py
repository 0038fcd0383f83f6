"""Batches of a dataset whose samples have an index: `dataset[7]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset

from hpckit.model.parallel.sample_order import SampleOrder
from hpckit.model.parallel.share import BatchShare
from hpckit.runtime.generators import kept_generators, seed_sample
from hpckit.values import dataclass


@dataclass(slots=True, kw_only=True)
class IndexedBatches(Dataset[Any]):
    """`batches[first]` is a data rank's share of the batch that begins with the sample `first`.

    Samples are numbered from the run's first, over all epochs. It keeps no position.
    """

    dataset: Any
    order: SampleOrder
    share: BatchShare
    collate: Callable[[list[Any]], Any]

    def __getitem__(self, first: int) -> Any:
        """Return this rank's rows of a batch, put together by `collate`."""
        numbers = self.share.numbers(first)
        with kept_generators():
            samples = self._samples(numbers)
            seed_sample(self.order.seed, numbers.start)
            return self.collate(samples)

    def _samples(self, numbers: range) -> list[Any]:
        indices = self.order.indices(numbers)
        # As torch's DataLoader does: datasets that read many samples at once have this method.
        at_once: Callable[[Sequence[int]], Any] | None = getattr(self.dataset, "__getitems__", None)
        if at_once is not None:
            seed_sample(self.order.seed, numbers.start)
            return list(at_once(indices))
        samples = []
        for number, index in zip(numbers, indices, strict=True):
            seed_sample(self.order.seed, number)
            samples.append(self.dataset[index])
        return samples
